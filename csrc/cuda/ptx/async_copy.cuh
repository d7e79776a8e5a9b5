/* Copies that a thread asks for and does not wait for: 4 to 16 bytes a lane (cp.async), any number (cp.async.bulk), and
 * to L2 or L1. By tensor map: see tensor_map.cuh. */
#ifndef NK_ASYNC_COPY_CUH
#define NK_ASYNC_COPY_CUH

#include <stdint.h>

/* ---------------------------------------------------------------------------------------------------------------- */
/* L2 and L1                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A policy for what is read once: L2 evicts it before anything else, so that what kernels wrote or will read stays. A
 * shared address beside it in a copy must differ from lane to lane: one that does not becomes a uniform register, which
 * ptxas 13.0 exchanges for the policy's, an illegal instruction. */
__device__ inline uint64_t createpolicy_evict_first()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* What lies there comes to L2, which stays coherent: it may still be written. Without a branch: behind a divergent one
 * the compiler takes nothing for uniform any more, not even wgmma's descriptors. */
__device__ inline void prefetch_global_l2_if(bool wanted, const uint8_t *at)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0;\n\t@p prefetch.global.L2 [%0]; }" ::"l"(at), "r"((int)wanted));
}

/* To L1, for loads that follow. */
__device__ inline void prefetch_global_l1(const void *at) { asm volatile("prefetch.global.L1 [%0];" ::"l"(at)); }

/* ---------------------------------------------------------------------------------------------------------------- */
/* cp.async: into this CTA's shared memory                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* BYTES = 4, 8 or 16; both addresses aligned to that. */
template <int BYTES> __device__ inline void cp_async_ca(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}

/* Of which `valid` are read and the rest are zeros. */
template <int BYTES> __device__ inline void cp_async_ca_zfill(uint32_t to, const void *from, int valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid)
                 : "memory");
}

/* The same; their line comes to L2. */
template <int BYTES>
__device__ inline void cp_async_ca_l2_128b_zfill_hint(uint32_t to, const void *from, int valid, uint64_t policy)
{
    asm volatile("cp.async.ca.shared.global.L2::cache_hint.L2::128B [%0], [%1], %2, %3, %4;" ::"r"(to), "l"(from),
                 "n"(BYTES), "r"(valid), "l"(policy)
                 : "memory");
}

/* 16 bytes past L1: for what is read once. */
__device__ inline void cp_async_cg(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ inline void cp_async_cg_zfill(uint32_t to, const void *from, int valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}

__device__ inline void cp_async_cg_hint_if(bool wanted, uint32_t to, const void *from, uint64_t policy)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0;\n\t"
                 "@p cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %3; }" ::"r"(to),
                 "l"(from), "r"((int)wanted), "l"(policy)
                 : "memory");
}

__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Arrives at an mbarrier once all copies that this thread has asked for are done. */
__device__ inline void cp_async_mbarrier_arrive_noinc(uint32_t mbarrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(mbarrier) : "memory");
}

/* Until at most PENDING of this thread's groups are under way. */
template <int PENDING> __device__ inline void cp_async_wait_group()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* cp.async.bulk: a multiple of 16 bytes, as both addresses are                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

/* To shared memory, whose mbarrier counts the bytes. */
__device__ inline void cp_async_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t mbarrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(mbarrier)
                 : "memory");
}

/* To the same address of every CTA in the mask, and of its mbarrier. */
__device__ inline void cp_async_bulk_multicast(uint32_t to, const void *from, uint32_t bytes, uint32_t mbarrier,
                                               uint16_t mask)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(mbarrier), "h"(mask)
                 : "memory");
}

/* For copies to global memory, also by tensor map. */
__device__ inline void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Until at most PENDING of this thread's groups have yet to read shared memory. */
template <int PENDING> __device__ inline void cp_async_bulk_wait_group_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

#endif
