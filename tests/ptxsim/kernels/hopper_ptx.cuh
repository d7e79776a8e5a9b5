/* What sm_90a adds, one PTX instruction a function, named after it. Addresses are those of shared memory, 32 bits; with
 * `cluster` in a name also of a peer's. https://docs.nvidia.com/cuda/parallel-thread-execution */
#ifndef NK_HOPPER_PTX_CUH
#define NK_HOPPER_PTX_CUH

#include <stdint.h>

/* What the host's cuTensorMapEncodeTiled fills. */
typedef struct alignas(64) tensor_map {
    uint8_t opaque[128];
} tensor_map;

__device__ inline uint32_t shared_address(const void *at) { return (uint32_t)__cvta_generic_to_shared(at); }

__device__ inline uint32_t cluster_ctarank()
{
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ inline uint32_t mapa(uint32_t at, uint32_t rank)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}

__device__ inline void barrier_cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ inline void barrier_cluster_arrive_relaxed()
{
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void barrier_cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

/* Of `THREADS` threads; number 0 is __syncthreads'. */
template <int THREADS> __device__ inline void bar_sync(int number)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

template <int REGISTERS> __device__ inline void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ inline void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* What this thread wrote to shared memory, or sees of what others wrote, becomes visible to asynchronous operations. */
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- mbarriers --------------------------------------------------------------------------------------------------- */

template <int ARRIVALS> __device__ inline void mbarrier_init(uint32_t at)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "n"(ARRIVALS) : "memory");
}

__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void mbarrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

__device__ inline void mbarrier_arrive_cluster(uint32_t at)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}

template <int BYTES> __device__ inline void mbarrier_arrive_expect_tx(uint32_t at)
{
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(at), "n"(BYTES) : "memory");
}

__device__ inline bool mbarrier_try_wait(uint32_t at, uint32_t parity)
{
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(at), "r"(parity)
                 : "memory");
    return done;
}

__device__ inline bool mbarrier_try_wait_cluster(uint32_t at, uint32_t parity)
{
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(at), "r"(parity)
                 : "memory");
    return done;
}

/* ---- bulk copies and tiles --------------------------------------------------------------------------------------- */

__device__ inline void cp_async_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t mbarrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(mbarrier)
                 : "memory");
}

__device__ inline void cp_async_bulk_tensor(uint32_t to, const tensor_map *map, int x, int y, uint32_t mbarrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(mbarrier)
                 : "memory");
}

/* To the same place in every CTA of the mask, signalling the same mbarrier there. */
__device__ inline void cp_async_bulk_tensor_multicast(uint32_t to, const tensor_map *map, int x, int y,
                                                      uint32_t mbarrier, uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(mbarrier), "h"(mask)
                 : "memory");
}

__device__ inline void cp_async_bulk_tensor_store(const tensor_map *map, int x, int y, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
                 "r"(y), "r"(from)
                 : "memory");
}

__device__ inline void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Until this thread's stores have read shared memory. */
__device__ inline void cp_async_bulk_wait_group_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* 16 bytes into a peer's shared memory, counted by an mbarrier there. */
__device__ inline void st_async_cluster_v4(uint32_t to, const float v[4], uint32_t mbarrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
                 "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(mbarrier)
                 : "memory");
}

/* ---- shared memory ----------------------------------------------------------------------------------------------- */

__device__ inline uint32_t ld_shared(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
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

__device__ inline void st_shared_v4(uint32_t at, const uint32_t v[4])
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}

/* Four 8x8 matrices of 16-bit elements; lane i points to row i % 8 of matrix i / 8, 16 bytes. */
__device__ inline void stmatrix_x4(uint32_t to, const uint32_t v[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3])
                 : "memory");
}

/* ---- wgmma: 64 x 64 x 16, sums in fp32 -----------------------------------------------------------------------------
 */

#define WGMMA_SUMS(d)                                                                                           \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),  \
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), \
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define WGMMA_D                                                                                                       \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
    "%30,%31}"
#define WGMMA_SS(kind)                           \
    "{ .reg .pred p; setp.ne.u32 p, %34, 0;\n\t" \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind "." kind " " WGMMA_D ", %32, %33, p, 1, 1, 0, 0; }"
#define WGMMA_RS(kind)                           \
    "{ .reg .pred p; setp.ne.u32 p, %37, 0;\n\t" \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind "." kind " " WGMMA_D ", {%32,%33,%34,%35}, %36, p, 1, 1, 0; }"

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* The sums are operands so that nothing reads them before. */
template <int PENDING> __device__ inline void wgmma_wait_group(float d[32])
{
    asm volatile("wgmma.wait_group.sync.aligned %32;" : WGMMA_SUMS(d) : "n"(PENDING) : "memory");
}

/* a, b: descriptors. D = A B^T + (accumulate ? D : 0) */
template <bool BF16> __device__ inline void wgmma_ss(float d[32], uint64_t a, uint64_t b, bool accumulate)
{
    if (BF16)
        asm volatile(WGMMA_SS("bf16") : WGMMA_SUMS(d) : "l"(a), "l"(b), "r"((int)accumulate));
    else
        asm volatile(WGMMA_SS("f16") : WGMMA_SUMS(d) : "l"(a), "l"(b), "r"((int)accumulate));
}

template <bool BF16> __device__ inline void wgmma_rs(float d[32], const uint32_t a[4], uint64_t b, bool accumulate)
{
    if (BF16)
        asm volatile(WGMMA_RS("bf16")
                     : WGMMA_SUMS(d)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate));
    else
        asm volatile(WGMMA_RS("f16")
                     : WGMMA_SUMS(d)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate));
}

#endif
