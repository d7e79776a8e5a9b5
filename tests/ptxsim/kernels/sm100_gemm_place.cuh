/* What all roles of sm100_gemm.cu know: how a variant lays out its cluster, where things are, how rings turn. */
#ifndef SM100_GEMM_PLACE_CUH
#define SM100_GEMM_PLACE_CUH

#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tcgen05.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "sm100_gemm_config.cuh"

extern __shared__ __align__(1024) uint8_t smem[];

template <int CTAS_, int GROUPS_, int SHARE_, int N_, int SCHEDULE_> struct shape {
    static constexpr int CTAS = CTAS_, GROUPS = GROUPS_, SHARE = SHARE_, N = N_, SCHEDULE = SCHEDULE_;
    static constexpr int CLUSTER = CTAS * GROUPS;
    static constexpr int ALONG_M = SHARE == SHARE_B ? GROUPS : 1, ALONG_N = SHARE == SHARE_A ? GROUPS : 1;
    static constexpr int ROWS = CLUSTER_ROWS(CTAS, GROUPS, SHARE), COLUMNS = CLUSTER_COLUMNS(GROUPS, SHARE, N);
    static constexpr int B_ROWS = N / CTAS; /* of one CTA */
    static constexpr int A_SHARERS = A_PARTS(GROUPS, SHARE), B_SHARERS = B_PARTS(GROUPS, SHARE);
    static constexpr int SFB_SHARERS = SFB_PARTS(CTAS, GROUPS, SHARE);
    static constexpr int STAGE = STAGE_BYTES(CTAS, N);
    static_assert(CTAS == 1 || CTAS == 2, "a cta_group is 1 or 2");
    static_assert(GROUPS == 1 || (GROUPS == 2 && SHARE != SHARE_NONE), "two groups share an operand");
    static_assert(N == 64 || N == 128, "SFB comes in atoms of 128 rows, or halves of one");
    static_assert(BLOCKS % SFB_SHARERS == 0, "each CTA loads whole atoms");
    static_assert(B_ROWS / B_SHARERS % 8 == 0, "the swizzle's pattern spans 8 rows");
    static_assert(STAGE % 1024 == 0, "tiles begin where the swizzle's pattern does");
    static_assert(SF_COLUMN(N) + STAGES * SF_STAGE_COLUMNS <= TMEM_COLUMNS, "tensor memory has 512 columns");
    static_assert(SMEM_BYTES(CTAS, N) <= 227 * 1024, "a CTA has at most 227 KiB of shared memory");
};

typedef struct place {
    int rank, half, group; /* in the cluster: the CTA's number, which of its pair, which group */
    uint32_t stages, boxes, full, empty, acc_full, acc_empty, clc_full, clc_empty, tmem_at, responses; /* shared */
} place;

template <class S> __device__ inline place place_of_cta()
{
    place p;
    p.rank = (int)cluster_ctarank();
    p.half = p.rank % S::CTAS;
    p.group = p.rank / S::CTAS;
    p.stages = (uint32_t)__cvta_generic_to_shared(smem);
    p.boxes = p.stages + BOX_AT(S::CTAS, S::N);
    p.full = p.stages + BARRIER_AT(S::CTAS, S::N);
    p.empty = p.full + 8 * STAGES;
    p.clc_full = p.empty + 8 * STAGES;
    p.clc_empty = p.clc_full + 8 * CLC_SLOTS;
    p.acc_full = p.clc_empty + 8 * CLC_SLOTS;
    p.acc_empty = p.acc_full + 8 * ACCUMULATORS;
    p.responses = p.acc_empty + 8 * ACCUMULATORS;
    p.tmem_at = p.responses + CLC_BYTES * CLC_SLOTS;
    return p;
}

/* What the MMA issuer of the group has at `shared`. */
template <class S> __device__ inline uint32_t of_even_cta(const place &at, uint32_t shared)
{
    return S::CTAS == 1 ? shared : mapa(shared, at.rank - at.half);
}

/* Where in a ring, and in which of its rounds. */
typedef struct ring {
    int slot;
    uint32_t phase;
} ring;

template <int SLOTS> __device__ inline void advance(ring &r)
{
    r.phase ^= r.slot == SLOTS - 1;
    r.slot = r.slot == SLOTS - 1 ? 0 : r.slot + 1;
}

__device__ inline void wait(uint32_t barriers, int slot, uint32_t phase)
{
    mbarrier_wait_cluster(barriers + 8 * slot, phase);
}

/* For tensor memory to be handed over: its order comes of the tcgen05 fences alone (PTX ISA, 9.7.16.6.4). */
__device__ inline void wait_for_tmem(uint32_t barriers, int slot, uint32_t phase)
{
    mbarrier_wait_cluster_relaxed(barriers + 8 * slot, phase);
    tcgen05_fence_after_thread_sync();
}

/* All threads of all CTAs of the cluster have come; what they wrote to shared memory is seen. */
__device__ inline void barrier_cluster()
{
    barrier_cluster_arrive_aligned();
    barrier_cluster_wait_aligned();
}

/* Tiles and bulk copies: with several SHARERS to the same address of each CTA in `mask`, whose barrier at the same
 * address hears of it; with CTAS = 2 that of the pair's CTA whose parity is that of the barrier's address. */
template <int CTAS, int SHARERS>
__device__ inline void load_box_2d(uint32_t to, const cuda_tensor_map *map, const int (&at)[2], uint32_t barrier,
                                   uint16_t mask)
{
    if (CTAS == 1 && SHARERS == 1)
        cp_async_bulk_tensor_2d(to, map, at, barrier);
    else if (CTAS == 1)
        cp_async_bulk_tensor_2d_multicast(to, map, at, barrier, mask);
    else if (SHARERS == 1)
        cp_async_bulk_tensor_2d_pair(to, map, at, barrier);
    else
        cp_async_bulk_tensor_2d_pair_multicast(to, map, at, barrier, mask);
}

template <int SHARERS>
__device__ inline void load_box_3d_of_pair(uint32_t to, const cuda_tensor_map *map, const int (&at)[3],
                                           uint32_t barrier, uint16_t mask)
{
    if (SHARERS == 1)
        cp_async_bulk_tensor_3d_pair(to, map, at, barrier);
    else
        cp_async_bulk_tensor_3d_pair_multicast(to, map, at, barrier, mask);
}

template <int SHARERS>
__device__ inline void load_bytes(uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t barrier, uint16_t mask)
{
    if (SHARERS == 1)
        cp_async_bulk(to, from, bytes, barrier);
    else
        cp_async_bulk_multicast(to, from, bytes, barrier, mask);
}

/* At the CTA's own barrier, or at that of each CTA in `mask`. */
template <int CTAS, bool OF_ALL> __device__ inline void commit(uint32_t barrier, uint16_t mask)
{
    if (OF_ALL)
        tcgen05_commit_multicast<CTAS>(barrier, mask);
    else
        tcgen05_commit<CTAS>(barrier);
}

#endif
