/* What an sm100 GEMM kernel is compiled for: a tile's extents, the maps of shared and tensor memory, and its waits. */
#ifndef NK_SM100_GEMM_TRAITS_CUH
#define NK_SM100_GEMM_TRAITS_CUH

#include "cuda/expert.cuh"
#include "cuda/pipeline_state.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tcgen05.cuh"
#include "sm100_gemm_config.h"

/* What the tile scheduler takes tiles from. */
enum { FROM_BATCHES, FROM_EXPERTS, FROM_LIST };

/* C in the templates below is this, or kind_f16_traits. */
template <int MATRICES_, int TILES_, int CTA_GROUP_, int MMA_N_, int SPLIT_K_, int ACCUMULATORS_, int PAIRS_ = 1>
struct mxf4nvf4_traits {
    static constexpr bool EXPERTS = TILES_ == FROM_EXPERTS, LIST = TILES_ == FROM_LIST;
    static constexpr bool ACTIVATED = false;   /* see activated */
    static constexpr int MATRICES = MATRICES_; /* of weights: dual GEMMs have gates and ups */
    static constexpr int OPERANDS = MATRICES + 1;
    static constexpr int CTA_GROUP = CTA_GROUP_, SPLIT_K = SPLIT_K_;
    static constexpr int PAIRS = PAIRS_; /* that load one operand N by multicast */
    static constexpr bool DYNAMIC = SM100_GEMM_IS_DYNAMIC(PAIRS);
    static constexpr int CLUSTER = CTA_GROUP * SPLIT_K * PAIRS;
    static constexpr uint16_t CLUSTER_MASK = (1 << CLUSTER) - 1;
    static constexpr int MMA_M = CTA_GROUP * SM100_GEMM_CTA_M, MMA_N = MMA_N_;
    static constexpr int CTA_N = MMA_N / CTA_GROUP; /* rows of operand N in a CTA's shared memory */
    static constexpr int STAGES = SM100_GEMM_STAGES(CTA_GROUP, MMA_N, SPLIT_K, MATRICES);
    static constexpr int EPILOGUE_N = MMA_N / SPLIT_K; /* columns that a CTA stores */
    /* Columns that a thread loads at once: fewer where two matrices' sums meet those of peers. */
    static constexpr int LOAD_N = EPILOGUE_N < 32 || (MATRICES > 1 && SPLIT_K > 1) ? 16 : 32;
    static constexpr int N_ATOM_ROWS = SM100_GEMM_N_ATOM_ROWS(MMA_N); /* of operand N */
    static constexpr int ATOM_ROWS = MATRICES + N_ATOM_ROWS;          /* of all operands */
    static constexpr int ACCUMULATORS = ACCUMULATORS_;
    static constexpr int ACCUMULATOR_COLUMNS = MATRICES * MMA_N; /* in tensor memory, where accumulators come first */
    static constexpr int SF_COLUMN = ACCUMULATORS * ACCUMULATOR_COLUMNS; /* scale factors come next */
    static constexpr int SF_STAGE_COLUMNS = ATOM_ROWS * SM100_GEMM_SF_COLUMNS;
    static constexpr int SF_ROOM = (SM100_GEMM_TMEM_COLUMNS - SF_COLUMN) / SF_STAGE_COLUMNS;
    static constexpr int SF_STAGES = SF_ROOM < STAGES ? SF_ROOM : STAGES;
    static_assert(CTA_GROUP == 1 || CTA_GROUP == 2, "an MMA is one CTA's or a pair's");
    static_assert(PAIRS == 1 || (PAIRS == 2 && CTA_GROUP == 2 && SPLIT_K == 1 && TILES_ == FROM_BATCHES), "multicast");
    static_assert(SM100_GEMM_K_BLOCKS % CLUSTER == 0,
                  "each CTA of a multicast copies whole atoms; split clusters pass as well");
    static_assert(!EXPERTS || CLUSTER == CTA_GROUP, "the leader of the table of experts is rank 0");
    static_assert(CTA_N / PAIRS % 8 == 0, "the swizzle's pattern spans 8 rows");
    static_assert(MMA_N % 64 == 0, "a tile begins at an atom of 128 rows, or in the middle of one");
    static_assert(MMA_N <= 256, "an MMA has no more");
    static_assert(EPILOGUE_N % 16 == 0, "the epilogue stores 16 columns at a time");
    static_assert(SF_STAGES >= 2, "one stage's scale factors are copied while another's are used");
    static_assert(STAGES >= 3, "one stage is filled while another is multiplied");
};

/* Responses of cluster launch control, on their way or not yet read by every role. */
typedef struct response_pipeline {
    uint4 responses[SM100_GEMM_SCHEDULER_STAGES];
    uint64_t full[SM100_GEMM_SCHEDULER_STAGES], empty[SM100_GEMM_SCHEDULER_STAGES];
} response_pipeline;

/* A CTA's shared memory. sm100_gemm.cuh says who arrives at the barriers. */
template <class C> struct mxf4nvf4_smem {
    struct stage {
        uint8_t operand_m[C::MATRICES][SM100_GEMM_CTA_M * SM100_GEMM_CODE_BYTES]; /* swizzled, as operand N is */
        uint8_t operand_n[C::CTA_N * SM100_GEMM_CODE_BYTES];
        uint8_t sf[C::ATOM_ROWS][SM100_GEMM_SF_BYTES]; /* of each matrix of operand M, then of operand N */
    } stages[C::STAGES];
    /* Peers' partial sums: [peer][matrix][column / 4][lane]. */
    float4 inbox[C::SPLIT_K - 1][C::MATRICES][C::EPILOGUE_N / 4][SM100_GEMM_CTA_M];
    response_pipeline responses[C::DYNAMIC ? 1 : 0];
    uint64_t full[C::STAGES], empty[C::STAGES];
    uint64_t accumulator_full[C::ACCUMULATORS], accumulator_empty[C::ACCUMULATORS];
    uint64_t inbox_full, peers_ready;
    uint32_t tmem; /* the address of tensor memory */
    expert_scan<SM100_GEMM_THREADS / 32> scan[C::EXPERTS ? 1 : 0];
    alignas(16) sm100_gemm_expert experts[]; /* an entry is read as a whole */
};

/* Waits, and acquires what this CTA wrote; in a pair what the cluster wrote, since the leader's MMAs read the
 * follower's shared memory. */
template <class C> __device__ inline void wait_cta_group(const uint64_t *barrier, uint32_t parity)
{
    if constexpr (C::CTA_GROUP == 1)
        mbarrier_wait(shared_address(barrier), parity);
    else
        mbarrier_wait_cluster(shared_address(barrier), parity);
}

/* Waits until tensor memory is handed over. The wait is relaxed: tcgen05 fences on both sides order what is in tensor
 * memory (PTX ISA, tcgen05 memory consistency model), and no other memory changes hands. */
__device__ inline void wait_tmem(const uint64_t *barrier, uint32_t parity)
{
    mbarrier_wait_cluster_relaxed(shared_address(barrier), parity);
    tcgen05_fence_after_thread_sync();
}

/* Waits until all stages are empty again: the last arrivals from other CTAs must not find this one gone. */
template <int STAGES> __device__ inline void drain_pipeline(const uint64_t *empty, pipeline_state next)
{
#pragma unroll 1
    for (int i = 0; i < STAGES; i++, next.advance(STAGES))
        mbarrier_wait_cluster_relaxed(shared_address(&empty[next.stage]), next.parity ^ 1);
}

/* All threads of the cluster meet, by whole warps. Of what they wrote only mbarriers that fence_mbarrier_init() has
 * published are seen behind it: a release to the cluster waits for the whole GPU. */
template <class C> __device__ inline void meet_cluster()
{
    __syncwarp();
    if constexpr (C::CLUSTER == 1) {
        __syncthreads();
    } else {
        barrier_cluster_arrive_relaxed_aligned();
        barrier_cluster_wait_aligned();
    }
}

/* The address of all tensor memory, for all threads, once one of them has initialised the mbarriers. A pair allocates
 * together, and the peer must have been launched (PTX ISA, tcgen05.alloc): only behind the cluster's barrier it has.
 * No tcgen05 fence here: each role that uses tensor memory has one behind its first wait. */
template <class C, typename SMEM> __device__ inline uint32_t alloc_tmem(SMEM &s, bool is_mma_warp)
{
    if constexpr (C::CLUSTER > 1) meet_cluster<C>();
    if (is_mma_warp) {
        tcgen05_alloc<C::CTA_GROUP>(shared_address(&s.tmem), SM100_GEMM_TMEM_COLUMNS);
        tcgen05_relinquish_alloc_permit<C::CTA_GROUP>();
    }
    __syncwarp();
    __syncthreads();
    return ld_shared(shared_address(&s.tmem));
}

/* For all threads, at their end. */
template <class C> __device__ inline void dealloc_tmem(uint32_t tmem, bool is_mma_warp)
{
    meet_cluster<C>(); /* no CTA needs another one any more; roles have waited for what was under way to them */
    if (is_mma_warp) tcgen05_dealloc<C::CTA_GROUP>(tmem, SM100_GEMM_TMEM_COLUMNS);
}

#endif
