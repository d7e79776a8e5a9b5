/* One PTX instruction a function, named after it: what sm_90 has beyond sm_80.
 * https://docs.nvidia.com/cuda/parallel-thread-execution */
#ifndef NK_SM90_PTX_CUH
#define NK_SM90_PTX_CUH

#include "cuda/cuda_ptx.cuh"
#include "cuda/cuda_tensor_map.h"

/* A value that is to stay in a register: the compiler would work it out again in every step. */
__device__ inline uint32_t kept(uint32_t value)
{
    asm volatile("" : "+r"(value));
    return value;
}

__device__ inline const uint8_t *kept(const uint8_t *address)
{
    asm volatile("" : "+l"(address));
    return address;
}

/* The same, known to be in global memory, which the compiler forgets of what went through asm. */
__device__ inline const uint8_t *kept_global(const uint8_t *address)
{
    return (const uint8_t *)__cvta_global_to_generic((size_t)kept((const uint8_t *)__cvta_generic_to_global(address)));
}

/* For all threads of all CTAs of the cluster; nothing but initialised mbarriers is seen behind it. */
__device__ inline void barrier_cluster_arrive_relaxed()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ inline void barrier_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

/* Where CTA `rank` of the cluster has what this one has at `shared`. */
__device__ inline uint32_t mapa(uint32_t shared, uint32_t rank)
{
    uint32_t at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared), "r"(rank));
    return at;
}

/* To a CTA of the cluster, whose mbarrier counts the bytes. */
__device__ inline void st_async(uint32_t to, float value, uint32_t mbarrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
                 "r"(__float_as_uint(value)), "r"(mbarrier)
                 : "memory");
}

/* The same of the lanes that want it, without a branch: see prefetch_to_l2(). ptxas 13.0 makes an illegal instruction
 * of a constant value. */
__device__ inline void st_async_if(bool wanted, uint32_t to, float value, uint32_t mbarrier)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0;\n\t"
                 "@p st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2]; }" ::"r"(to),
                 "r"(__float_as_uint(value)), "r"(mbarrier), "r"((int)wanted)
                 : "memory");
}

__device__ inline void mbarrier_init(uint32_t at, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

/* Initialised mbarriers are seen by the cluster, and by copies that count bytes on them. */
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void mbarrier_arrive_expect_tx(uint32_t at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

/* All threads of so many warps, a multiple of 32 threads, by a number of theirs from 1 on. */
__device__ inline void bar_sync(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Until the phase of this parity has ended; what was written is seen. */
__device__ inline void mbarrier_wait(uint32_t at, uint32_t parity)
{
    asm volatile("{ .reg .pred p;\n"
                 "wait: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n\t"
                 "@!p bra wait; }" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

/* The same; what other CTAs of the cluster wrote is seen, too. */
__device__ inline void mbarrier_wait_cluster(uint32_t at, uint32_t parity)
{
    asm volatile("{ .reg .pred p;\n"
                 "wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n\t"
                 "@!p bra wait; }" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

__device__ inline uint4 ld_shared_v4(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* What L2 gives up before anything else: it is read once, and what others wrote or will read stays. An address in
 * shared memory beside it must differ from lane to lane: one that does not becomes a uniform register, which ptxas 13.0
 * exchanges for the policy's, an illegal instruction. */
__device__ inline uint64_t evict_first()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* 16 bytes that are read once, past L1; nothing where !wanted. */
__device__ inline void cp_async_16_once(uint32_t to, const uint8_t *from, bool wanted)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0;\n\t"
                 "@p cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %3; }" ::"r"(to),
                 "l"(from), "r"((int)wanted), "l"(evict_first())
                 : "memory");
}

/* To shared memory, whose mbarrier counts the bytes: a multiple of 16, as both addresses are. */
__device__ inline void cp_async_bulk(uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t mbarrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(mbarrier)
                 : "memory");
}

/* A tensor map's 128 bytes to where the TMA unit looks for them. */
__device__ inline void prefetch_tensormap(const cuda_tensor_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* The box of a tensor map whose corner is at `at`, read once; mbarrier counts its bytes, also of what lies outside the
 * tensor and is zero. */
__device__ inline void cp_async_bulk_tensor_5d(uint32_t to, const cuda_tensor_map *map, const int at[5],
                                               uint32_t mbarrier)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
                 "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(mbarrier), "l"(evict_first())
                 : "memory");
}

__device__ inline void cp_async_bulk_tensor_4d(uint32_t to, const cuda_tensor_map *map, const int at[4],
                                               uint32_t mbarrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(mbarrier), "l"(evict_first())
                 : "memory");
}

/* The same to L2, see prefetch_to_l2(). */
__device__ inline void cp_async_bulk_prefetch_tensor_5d(const cuda_tensor_map *map, const int at[5])
{
    asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(map), "r"(at[0]),
                 "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
                 : "memory");
}

__device__ inline void cp_async_bulk_prefetch_tensor_4d(const cuda_tensor_map *map, const int at[4])
{
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(at[0]),
                 "r"(at[1]), "r"(at[2]), "r"(at[3])
                 : "memory");
}

/* What lies there comes to L2, where it stays what memory holds: others may still write it. Nothing where !wanted, and
 * without a branch: behind one where lanes part, the compiler takes nothing for uniform any more, wgmma's descriptors
 * neither. */
__device__ inline void prefetch_to_l2(const uint8_t *at, bool wanted)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0;\n\t@p prefetch.global.L2 [%0]; }" ::"l"(at), "r"((int)wanted));
}

/* 4 bytes that are read once, whose line comes to L2; zeros where !wanted. */
__device__ inline void cp_async_4_once_or_zero(uint32_t to, const uint8_t *from, bool wanted)
{
    asm volatile("cp.async.ca.shared.global.L2::cache_hint.L2::128B [%0], [%1], 4, %2, %3;" ::"r"(to), "l"(from),
                 "r"(wanted ? 4 : 0), "l"(evict_first())
                 : "memory");
}

__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Until at most PENDING of this thread's groups are under way. */
template <int PENDING> __device__ inline void cp_async_wait_group()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ inline uint32_t ld_shared(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}

__device__ inline void st_shared(uint32_t at, uint32_t v)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

/* Without a branch. */
__device__ inline void st_shared_if(bool wanted, uint32_t at, uint32_t v)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0;\n\t@p st.shared.u32 [%0], %1; }" ::"r"(at), "r"(v),
                 "r"((int)wanted)
                 : "memory");
}

__device__ inline uint2 ld_shared_v2(uint32_t at)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}

__device__ inline void st_shared_v4(uint32_t at, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/* Ordinary writes to shared memory before it are seen by wgmma after it. */
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* `a`, written before it, may be operands of wgmma after it. */
__device__ inline void wgmma_fence(uint32_t a[4][4])
{
    asm volatile("wgmma.fence.sync.aligned;"
                 : "+r"(a[0][0]), "+r"(a[0][1]), "+r"(a[0][2]), "+r"(a[0][3]), "+r"(a[1][0]), "+r"(a[1][1]),
                   "+r"(a[1][2]), "+r"(a[1][3]), "+r"(a[2][0]), "+r"(a[2][1]), "+r"(a[2][2]), "+r"(a[2][3]),
                   "+r"(a[3][0]), "+r"(a[3][1]), "+r"(a[3][2]), "+r"(a[3][3])
                 :
                 : "memory");
}

__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* Until at most PENDING of the warp's groups are under way; d, of those that are not, is there. */
template <int PENDING> __device__ inline void wgmma_wait_group(float d[2][4])
{
    asm volatile("wgmma.wait_group.sync.aligned %8;"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
                   "+f"(d[1][2]), "+f"(d[1][3])
                 : "n"(PENDING)
                 : "memory");
}

/* Eight rows of 32 bytes in shared memory, [half of a row][row][16]: K-major without swizzle. */
__device__ inline uint64_t wgmma_b32_descriptor(uint32_t at)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
}

/* d (ADD: +)= a b: a 64x32 of four warps' registers, b 32x8, both E4M3, d 64x8 in fp32. */
template <bool ADD> __device__ inline void wgmma_m64n8k32_e4m3(float d[4], const uint32_t a[4], uint64_t b)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %9, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, 1, 1; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"((int)ADD)
                 : "memory");
}

/* Two E4M3 bytes as halves, exact; 0x7F is NaN. */
__device__ inline uint32_t cvt_f16x2_e4m3x2(uint32_t bytes)
{
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)bytes));
    return halves;
}

#endif
