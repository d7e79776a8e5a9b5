/* One PTX instruction a function, named after it: what sm_100 has beyond sm_90, and what of sm_90 leads there.
 * https://docs.nvidia.com/cuda/parallel-thread-execution */
#ifndef SM100_GEMM_PTX_CUH
#define SM100_GEMM_PTX_CUH

#include "sm90/sm90_ptx.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* Warps, mbarriers                                                                                                 */
/* ---------------------------------------------------------------------------------------------------------------- */

/* True in one lane of the warp, the same one each time. */
__device__ inline bool elect_sync()
{
    uint32_t elected;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
    return elected;
}

__device__ inline uint32_t cluster_ctarank()
{
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of all CTAs of the cluster have come; what they wrote to shared memory is seen. */
__device__ inline void barrier_cluster()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    barrier_cluster_wait();
}

/* `barrier` may be another CTA's. */
__device__ inline void mbarrier_arrive_cluster(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Where nothing follows that memory order must carry; a release to the cluster is a slow thing. */
__device__ inline void mbarrier_arrive_cluster_relaxed(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ inline bool mbarrier_try_wait_parity(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

__device__ inline bool mbarrier_try_wait_parity_relaxed(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Copies                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Tiles and bulk copies: to the same place of each CTA in `mask` where MULTICAST, whose barrier at the same place
 * hears of it; with a CTA_GROUP of 2 that of the pair's CTA whose parity is that of the barrier's address. */
template <int CTA_GROUP, bool MULTICAST>
__device__ inline void cp_async_bulk_tensor_2d(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t barrier,
                                               uint16_t mask)
{
    if (CTA_GROUP == 1 && !MULTICAST)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y)
                     : "memory");
    else if (CTA_GROUP == 1)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                     " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(mask)
                     : "memory");
    else if (!MULTICAST)
        asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(mask)
                     : "memory");
}

template <bool MULTICAST>
__device__ inline void cp_async_bulk_tensor_3d_pair(uint32_t to, const CUtensorMap *map, int x, int y, int z,
                                                    uint32_t barrier, uint16_t mask)
{
    if (!MULTICAST)
        asm volatile("cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(mask)
                     : "memory");
}

template <bool MULTICAST>
__device__ inline void cp_async_bulk(uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t barrier, uint16_t mask)
{
    if (!MULTICAST)
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
            "l"(from), "r"(bytes), "r"(barrier)
            : "memory");
    else
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                     " [%0], [%1], %2, [%3], %4;" ::"r"(to),
                     "l"(from), "r"(bytes), "r"(barrier), "h"(mask)
                     : "memory");
}

__device__ inline void cp_async_bulk_tensor_2d_store(const CUtensorMap *map, int x, int y, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
                 "r"(x), "r"(y)
                 : "memory");
}

__device__ inline void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Until at most PENDING of this thread's groups have yet to read shared memory. */
template <int PENDING> __device__ inline void cp_async_bulk_wait_group_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Cluster launch control                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Asks to take the place of a cluster that has yet to start; the response comes to the same place in every CTA. */
__device__ inline void clusterlaunchcontrol_try_cancel(uint32_t response, uint32_t barrier)
{
    asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
                 ".multicast::cluster::all.b128 [%0], [%1];" ::"r"(response),
                 "r"(barrier)
                 : "memory");
}

/* False where there is none left; else `block` is blockIdx.x of its first CTA. */
__device__ inline bool clusterlaunchcontrol_query_cancel(uint32_t response, uint32_t &block)
{
    uint32_t canceled;
    asm volatile("{ .reg .pred p; .reg .b128 r;\n\t"
                 "ld.shared.b128 r, [%2];\n\t"
                 "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t"
                 "mov.u32 %1, 0;\n\t"
                 "@p clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %1, r; }"
                 : "=r"(canceled), "=&r"(block)
                 : "r"(response)
                 : "memory");
    return canceled;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* tcgen05                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Puts the address at `to` in shared memory. With a group of two, both CTAs' warps. */
template <int CTA_GROUP> __device__ inline void tcgen05_alloc(uint32_t to, uint32_t columns)
{
    asm volatile("tcgen05.alloc.cta_group::%0.sync.aligned.shared::cta.b32 [%1], %2;" ::"n"(CTA_GROUP), "r"(to),
                 "r"(columns)
                 : "memory");
}

template <int CTA_GROUP> __device__ inline void tcgen05_relinquish_alloc_permit()
{
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::%0.sync.aligned;" ::"n"(CTA_GROUP));
}

template <int CTA_GROUP> __device__ inline void tcgen05_dealloc(uint32_t tmem, uint32_t columns)
{
    asm volatile("tcgen05.dealloc.cta_group::%0.sync.aligned.b32 %1, %2;" ::"n"(CTA_GROUP), "r"(tmem), "r"(columns));
}

__device__ inline void tcgen05_fence_before_thread_sync()
{
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

__device__ inline void tcgen05_fence_after_thread_sync()
{
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/* 32 rows of 16 bytes, into all four quarters of the lanes; of each CTA of the group, out of its own shared memory. */
template <int CTA_GROUP> __device__ inline void tcgen05_cp_32x128b_warpx4(uint32_t tmem, uint64_t matrix)
{
    asm volatile("tcgen05.cp.cta_group::%0.32x128b.warpx4 [%1], %2;" ::"n"(CTA_GROUP), "r"(tmem), "l"(matrix)
                 : "memory");
}

/* D = A B (+ D), with a scale factor for every 16 along K. */
template <int CTA_GROUP>
__device__ inline void tcgen05_mma_mxf4nvf4(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, uint32_t sfa,
                                            uint32_t sfb, bool accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %7, 0;\n\t"
                 "tcgen05.mma.cta_group::%0.kind::mxf4nvf4.block_scale.scale_vec::4X"
                 " [%1], %2, %3, %4, [%5], [%6], p; }" ::"n"(CTA_GROUP),
                 "r"(d), "l"(a), "l"(b), "r"(instruction), "r"(sfa), "r"(sfb), "r"((int)accumulate)
                 : "memory");
}

/* Arrives when all that this thread issued before has been done: at the CTA's own barrier, or at that of each CTA in
 * `mask`. */
template <int CTA_GROUP, bool MULTICAST> __device__ inline void tcgen05_commit(uint32_t barrier, uint16_t mask)
{
    if (!MULTICAST)
        asm volatile("tcgen05.commit.cta_group::%0.mbarrier::arrive::one.shared::cluster.b64 [%1];" ::"n"(CTA_GROUP),
                     "r"(barrier)
                     : "memory");
    else
        asm volatile("tcgen05.commit.cta_group::%0.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
                     " [%1], %2;" ::"n"(CTA_GROUP),
                     "r"(barrier), "h"(mask)
                     : "memory");
}

/* 32 columns of the warp's 32 lanes: a row a thread. */
__device__ inline void tcgen05_ld_32x32b_x32(uint32_t tmem, uint32_t (&v)[32])
{
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32"
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, [%32];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]),
                   "=r"(v[8]), "=r"(v[9]), "=r"(v[10]), "=r"(v[11]), "=r"(v[12]), "=r"(v[13]), "=r"(v[14]), "=r"(v[15]),
                   "=r"(v[16]), "=r"(v[17]), "=r"(v[18]), "=r"(v[19]), "=r"(v[20]), "=r"(v[21]), "=r"(v[22]),
                   "=r"(v[23]), "=r"(v[24]), "=r"(v[25]), "=r"(v[26]), "=r"(v[27]), "=r"(v[28]), "=r"(v[29]),
                   "=r"(v[30]), "=r"(v[31])
                 : "r"(tmem)
                 : "memory");
}

__device__ inline void tcgen05_wait_ld() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }

#endif
