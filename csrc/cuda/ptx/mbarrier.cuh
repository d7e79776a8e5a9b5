/* mbarriers: arrivals and bytes that a phase counts, and waiting for its end. */
#ifndef NK_MBARRIER_CUH
#define NK_MBARRIER_CUH

#include <stdint.h>

__device__ inline void mbarrier_init(uint32_t at, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

/* Initialised mbarriers are seen by the cluster, and by copies that count bytes on them. */
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void mbarrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

__device__ inline void mbarrier_arrive_if(bool wanted, uint32_t at)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0;\n\t"
                 "@p mbarrier.arrive.release.cta.shared::cta.b64 _, [%0]; }" ::"r"(at),
                 "r"((int)wanted)
                 : "memory");
}

/* Another CTA's barrier; the release is to this CTA alone. One to the cluster is a fence of the whole GPU in machine
 * code, 570 to 1240 cycles on an H200, where this takes 5. So no thread of the other CTA may read, by loads of its own,
 * what threads here wrote. */
__device__ inline void mbarrier_arrive_remote(uint32_t at)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}

/* The same where no memory order at all must follow. */
__device__ inline void mbarrier_arrive_cluster_relaxed(uint32_t at)
{
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}

__device__ inline void mbarrier_arrive_expect_tx(uint32_t at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

/* Until the phase of this parity has ended: mbarrier.try_wait, again and again. Then what was written before arrivals
 * is seen: of this CTA, of the cluster (_cluster), or nothing but what other fences order (_relaxed). The loop is PTX,
 * of which ptxas makes better code than of one around an answer in a register. The compiler does not see it: if a
 * loop around it is not to be unrolled, say so. */
#define NK_MBARRIER_WAIT(name, order)                                                            \
    __device__ inline void mbarrier_wait##name(uint32_t at, uint32_t parity)                     \
    {                                                                                            \
        asm volatile("{ .reg .pred p;\n"                                                         \
                     "wait: mbarrier.try_wait.parity." order ".shared::cta.b64 p, [%0], %1;\n\t" \
                     "@!p bra wait; }" ::"r"(at),                                                \
                     "r"(parity)                                                                 \
                     : "memory");                                                                \
    }
NK_MBARRIER_WAIT(, "acquire.cta")
NK_MBARRIER_WAIT(_cluster, "acquire.cluster")
NK_MBARRIER_WAIT(_cluster_relaxed, "relaxed.cluster")
#undef NK_MBARRIER_WAIT

#endif
