/* What the parts of a kernel of sm90_gemm.cuh share: its configuration, shared memory, tile scheduler and range of K.
 */
#ifndef NK_SM90_GEMM_TILE_CUH
#define NK_SM90_GEMM_TILE_CUH

#include "cuda/expert.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/sf_layout.cuh"
#include "gemm/gemm_gated.h"
#include "sm90_gemm_config.h"
#include "sm90_list_params.h"

#include <stddef.h>

enum { BARRIER_CTA, BARRIER_CONSUMERS, BARRIER_PAIRS, BARRIERS = 16 }; /* a number for each pair of warps */
/* A band of tiles along N goes through all tiles along M before the next band does, for L2. */
enum { WARPGROUP = 128, BAND_N_TILES = 32 };

enum operator_of_kernel { GEMM, NATURAL_K_GEMM, DUAL_GEMM, GROUPED_GEMM, GROUPED_DUAL_GEMM, LIST_GEMM };

/* The tile_m that tiles of a list's groups may have. */
template <int TILE_M_> struct tile_m_constant {
    static constexpr int TILE_M = TILE_M_;
};
template <int... TILE_MS> struct tile_m_list {
    /* Calls f(tile_m_constant) with the one of this index. */
    template <typename F> __device__ static void call(int index, F f)
    {
        int i = 0;
        ((i++ == index ? f(tile_m_constant<TILE_MS>()) : void()), ...);
    }
};

/* A kernel's configuration, from the columns of SM90_GEMM_TILES. */
template <int OPERATOR_, bool BFLOAT_, int TILE_M_, int TILE_N_, int CONSUMER_GROUPS_, int CLUSTER_, int STAGES_,
          int STEPS_, int EARLY_STAGES_, int... TILE_MS_>
struct sm90_tile_config {
    typedef tile_m_list<TILE_MS_...> TILE_MS;
    static constexpr bool NATURAL_K = OPERATOR_ == NATURAL_K_GEMM; /* the order of tokens: no prologue kernel */
    static constexpr bool LIST = OPERATOR_ == LIST_GEMM;
    static constexpr bool EXPERTS = OPERATOR_ == GROUPED_GEMM || OPERATOR_ == GROUPED_DUAL_GEMM;
    static constexpr bool GROUPED = LIST || EXPERTS; /* tokens of many GEMMs are rows of one matrix */
    static constexpr bool ACTIVATED = false;         /* see activated */
    /* Half of a stage's weight rows are gates, half ups. */
    static constexpr bool DUAL = OPERATOR_ == DUAL_GEMM || OPERATOR_ == GROUPED_DUAL_GEMM;
    static constexpr int TILE_M = TILE_M_, CONSUMER_GROUPS = CONSUMER_GROUPS_, CLUSTER = CLUSTER_;
    static constexpr int STAGES = STAGES_, STEPS = STEPS_, EARLY_STAGES = EARLY_STAGES_;
    static constexpr int TILE_N = TILE_N_, WARPGROUPS = TILE_N / 64; /* of a consumer group */
    static constexpr int FEATURES = TILE_N / (DUAL ? 2 : 1);         /* columns of the output */
    static constexpr int SF_ATOMS_N = SM90_GEMM_SF_ATOMS_N(TILE_N, DUAL ? 2 : 1);
    static constexpr int CTA_SPLIT_K = CONSUMER_GROUPS;
    static constexpr bool IS_SPLIT_K = CTA_SPLIT_K * CLUSTER > 1;
    static constexpr int LISTED_TILES = EXPERTS ? SM90_GEMM_LISTED_TILES : 0;
    static constexpr int TILE_M_STEP = EXPERTS ? SM90_GEMM_TILE_M_STEP(TILE_M) : TILE_M;
    static constexpr int COPY_WARPS = TILE_N == 256 ? 2 : 1; /* that copy scale factors, each of as many rows */
    static constexpr bool HAS_SF_BOXES = EXPERTS && SM90_GEMM_HAS_SF_BOXES(TILE_N);
    static constexpr bool BFLOAT = BFLOAT_;
    static constexpr bool HAS_PRODUCER_WARPGROUP = SM90_GEMM_HAS_PRODUCER_WARPGROUP(TILE_M, TILE_N_, NATURAL_K);
    static constexpr int REARRANGE_WARPS = NATURAL_K ? 2 : 0; /* the last two producers */
    static constexpr int CONSUMER_THREADS = WARPGROUPS * WARPGROUP * CONSUMER_GROUPS;
    static constexpr int THREADS = SM90_GEMM_THREADS(TILE_M, TILE_N_, CONSUMER_GROUPS, NATURAL_K);
    static constexpr int SMEM = SM90_GEMM_SMEM(TILE_M, TILE_N_, CLUSTER, STAGES, STEPS, DUAL ? 2 : 1);
    static constexpr int N8S = TILE_M / 8;                    /* n8 groups of the MMA: eight tokens each */
    static constexpr int ACCUMULATORS = TILE_M / 2;           /* of a thread: four in each n8 group */
    static constexpr int OWN_N8S = N8S / CTA_SPLIT_K;         /* n8 groups that a warpgroup keeps after the reduction */
    static constexpr bool BOTH_CTAS_STORE = OWN_N8S % 2 == 0; /* each CTA of a cluster stores half of them */
    static constexpr int ENCODER_WARPS = OPERATOR_ == GROUPED_DUAL_GEMM ? CONSUMER_THREADS / 32 : 0;
    static_assert(STAGES % CONSUMER_GROUPS == 0 && EARLY_STAGES <= STAGES, "a consumer group keeps its stages");
    static_assert(N8S % CTA_SPLIT_K == 0 && (CLUSTER == 1 || BOTH_CTAS_STORE || CTA_SPLIT_K == 2),
                  "each CTA stores some n8 groups");
    static_assert(!EXPERTS || !IS_SPLIT_K, "experts: no split-K. A cluster's CTAs could read different offsets");
    static_assert(!NATURAL_K || (!IS_SPLIT_K && STEPS == 1 && SF_ATOMS_N == 1), "what rearrange_codes() does");
    static_assert(!LIST || (!IS_SPLIT_K && SF_ATOMS_N == 1), "what consume_tiles() of a list does");
    static_assert(TILE_M % TILE_M_STEP == 0 && TILE_M / TILE_M_STEP <= SM90_GEMM_MOST_TILE_M_STEPS, "a map for each");
    static_assert(BARRIER_PAIRS + ENCODER_WARPS / 2 <= BARRIERS, "as many as a CTA has");
};

typedef struct tile_coord {
    int l;     /* batch, expert or group */
    int n;     /* first weight row, of each matrix */
    int m;     /* first token */
    int m_end; /* where the tokens of an expert's tile, or of a group, end; else unused */
} tile_coord;

template <class C> struct sm90_gemm_memory {
    struct stage {
        uint8_t codes[C::STEPS][C::TILE_N][SM90_GEMM_CODE_BYTES];
        /* Blocked, or linear ones row after row. */
        uint8_t sf[SM90_GEMM_STAGE_SF_BYTES(C::TILE_N, C::STEPS, C::DUAL ? 2 : 1)];
        uint8_t tokens[2 * C::STEPS][C::TILE_M][2 * SM90_GEMM_SWIZZLE_K];
    } stages[C::STAGES];
    struct {
        float4 n8[C::CLUSTER == 1      ? 0
                  : C::BOTH_CTAS_STORE ? C::WARPGROUPS * C::CONSUMER_GROUPS
                                       : C::WARPGROUPS][C::BOTH_CTAS_STORE ? C::OWN_N8S / 2 : C::OWN_N8S][WARPGROUP];
    } peer_sums; /* the other CTA's partial sums, by warpgroup */
    uint64_t full[C::STAGES], empty[C::STAGES], sums_full, codes_full[C::NATURAL_K ? C::STAGES : 0];
    expert_scan<C::THREADS / 32> scan[C::EXPERTS ? 1 : 0];
    uint32_t half_block_sf[C::ENCODER_WARPS][8]; /* of eight features of a warp, see encode_gated_tile() */
    tile_coord listed[C::LISTED_TILES];          /* the CTA's first tiles, so that no tile begins with divisions */
    int2 experts[];                              /* see list_experts() */
};

/* Shared addresses, kept in registers: the compiler would compute them again for each stage. */
template <class C> struct smem_addresses {
    typedef typename sm90_gemm_memory<C>::stage stage;
    uint32_t stages, barriers;

    __device__ explicit smem_addresses(const sm90_gemm_memory<C> &s)
        : stages(kept(shared_address(s.stages))), barriers(kept(shared_address(s.full)))
    {
        static_assert(offsetof(sm90_gemm_memory<C>, empty) == offsetof(sm90_gemm_memory<C>, full) + 8 * C::STAGES &&
                          offsetof(sm90_gemm_memory<C>, codes_full) ==
                              offsetof(sm90_gemm_memory<C>, full) + 8 * (2 * C::STAGES + 1),
                      "they are neighbours");
    }
    __device__ uint32_t stage_at(int i) const { return stages + i * (uint32_t)sizeof(stage); }
    __device__ uint32_t full(int i) const { return barriers + i * 8; }
    __device__ uint32_t empty(int i) const { return barriers + (C::STAGES + i) * 8; }
    __device__ uint32_t codes_full(int i) const { return barriers + (2 * C::STAGES + 1 + i) * 8; }
};

/* The stage that a producer or a consumer is at, and the parity of its barriers. */
typedef struct sm90_pipeline_state {
    int stage;
    uint32_t parity;
} sm90_pipeline_state;

template <int STAGES> __device__ inline void advance_pipeline(sm90_pipeline_state &r, int by)
{
    const bool wraps = r.stage >= STAGES - by;
    r.stage += wraps ? by - STAGES : by;
    r.parity ^= wraps;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Tile scheduler: static. CTAs are persistent, but with split-K, where each tile has its own CTA or cluster        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Tokens of an expert's tile, in units of TILE_M_STEP: at least one, whatever offsets held while they were read. */
template <class C> __device__ inline int m_steps_of(const tile_coord &tile)
{
    return max((tile.m_end - tile.m + C::TILE_M_STEP - 1) / C::TILE_M_STEP, 1);
}

/* Experts, or groups, share one batch of tokens. */
template <class C> __device__ inline int batch_of(const tile_coord &tile) { return C::GROUPED ? 0 : tile.l; }
template <class C> __device__ inline int64_t m_end_of(const tile_coord &tile, int64_t m)
{
    return C::GROUPED ? tile.m_end : m;
}

typedef struct gemm_tile_scheduler {
    const sm90_gemm_params &params;
    const int2 *experts; /* see list_experts() */
    int64_t expert_count;
    int tiles;
    const sm90_list *list;    /* of groups, or null */
    const tile_coord *listed; /* see list_tiles() */
} gemm_tile_scheduler;

template <typename P> __device__ inline const sm90_list *list_of(const P &) { return nullptr; }
__device__ inline const sm90_list *list_of(const sm90_list &list) { return &list; }

/* Tiles of the same weights are neighbours. */
__device__ inline tile_coord list_tile_at(const sm90_list &list, int index, int features)
{
    int g = 0;
    while (g + 1 < list.count && list.group[g + 1].first_tile <= index)
        g++;
    const sm90_list_group &group = list.group[g];
    const int i = index - group.first_tile, n = i / group.params.m_tiles, m = i - n * group.params.m_tiles;
    return {g, n * features, group.first_row + m * group.tile_m, group.first_row + (int)group.gemm.m};
}

template <class C> __device__ inline tile_coord tile_at(const gemm_tile_scheduler &of, int index)
{
    const sm90_gemm_params &params = of.params;
    if constexpr (C::EXPERTS) { /* tiles of the same tokens are neighbours */
        const int m_tile = index / params.n_tiles;
        const int n = (index - m_tile * params.n_tiles) * C::FEATURES;
        const int expert = expert_of_tile(of.experts, of.expert_count, m_tile);
        const int2 begin = of.experts[expert], end = of.experts[expert + 1];
        /* An expert's tokens are divided evenly: of TILE_M 112, 280 are 96 + 96 + 88, not 112 + 112 + 56. */
        const int rows = (end.y - begin.y + end.x - begin.x - 1) / (end.x - begin.x);
        const int tile_m = min((rows + C::TILE_M_STEP - 1) / C::TILE_M_STEP * C::TILE_M_STEP, C::TILE_M);
        const int m = begin.y + (m_tile - begin.x) * tile_m;
        return {expert, n, m, min(m + tile_m, end.y)};
    } else {
        const int per_batch = params.n_tiles * params.m_tiles, l = index / per_batch, rest = index - l * per_batch;
        const int band = rest / (BAND_N_TILES * params.m_tiles),
                  n_tiles = min(BAND_N_TILES, params.n_tiles - band * BAND_N_TILES);
        const int i = rest - band * BAND_N_TILES * params.m_tiles;
        return {l, (band * BAND_N_TILES + i % n_tiles) * C::FEATURES, i / n_tiles * C::TILE_M, 0};
    }
}

/* The first tiles of this CTA, by all threads. */
template <class C> __device__ inline void list_tiles(const gemm_tile_scheduler &scheduler, tile_coord *listed)
{
    for (int i = threadIdx.x; i < C::LISTED_TILES; i += C::THREADS) {
        const int t = (int)blockIdx.x + i * (int)gridDim.x;
        if (t < scheduler.tiles) listed[i] = tile_at<C>(scheduler, t);
    }
    __syncthreads();
}

/* Calls f(tile) for each tile of this CTA, or for the one of this cluster. */
template <class C, typename F> __device__ inline void for_each_tile(const gemm_tile_scheduler &scheduler, F f)
{
    int t = (int)blockIdx.x / C::CLUSTER;
    if constexpr (C::IS_SPLIT_K) {
        f(tile_at<C>(scheduler, t));
    } else if constexpr (C::LIST) { /* in alternating order: a CTA with a long tile has a short one next */
        const int ctas = (int)gridDim.x;
#pragma unroll 1
        for (int first = 0; first < scheduler.tiles; first += ctas, t = ctas - 1 - t)
            if (first + t < scheduler.tiles) f(list_tile_at(*scheduler.list, first + t, C::FEATURES));
    } else {
#pragma unroll 1
        for (int i = 0; t < scheduler.tiles; t += (int)gridDim.x, i++)
            f(i < C::LISTED_TILES ? scheduler.listed[i] : tile_at<C>(scheduler, t));
    }
}

/* K tiles begin .. end - 1. */
typedef struct k_range {
    int begin, end;
} k_range;

template <class C> __device__ inline k_range k_tiles_of_cta(const sm90_gemm_params &params)
{
    const int all = (params.k_steps + C::STEPS - 1) / C::STEPS;
    const int begin = C::CLUSTER == 1 ? 0 : (int)cluster_ctarank() * params.k_tiles_per_cta;
    return {min(begin, all), min(begin + params.k_tiles_per_cta, all)};
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Weights                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Tensor maps of the weights: of two matrices, the gates and the ups, or twice of one; and of their linear scale
 * factors, or null. */
typedef struct weight_maps {
    const cuda_tensor_map &first, &second, *sf;
} weight_maps;

__device__ inline const nk_operand &weights_of(const nk_gemm_problem &p, bool) { return p.b; }
__device__ inline const nk_operand &weights_of(const nk_dual_gemm_problem &p, bool second)
{
    return second ? p.b2 : p.b1;
}

__device__ inline const nk_operand &weights_of(const gemm_gated &p, bool second) { return second ? p.b2 : p.b1; }
__device__ inline const nk_operand &weights_of(const sm90_list &list, bool) { return list.group[0].gemm.b; } /* alike */

/* A stage with 64 rows of each of two matrices has half of each one's atom: whole atoms would be twice the bytes. */
template <class C> __device__ constexpr bool has_half_atoms() { return C::DUAL && C::SF_ATOMS_N == 1; }

/* By how many rows blocked scale factors of an expert's ups begin within an atom, whose first rows are gates. */
template <class C, typename P> __device__ inline int ups_row_in_atom(const P &p)
{
    if constexpr (C::EXPERTS && C::DUAL)
        return p.b1.sf_layout == NK_SF_BLOCKED ? sf_row_in_atom((int)p.n) : 0;
    else
        return 0;
}

/* Whether a stage has scale factors row after row: linear ones, and those that are copied row by row. */
template <class C, typename P> __device__ inline bool has_sf_rows(const P &p)
{
    return weights_of(p, 0).sf_layout == NK_SF_LINEAR || ups_row_in_atom<C>(p) != 0;
}

/* How scale factors come to a stage. Lanes copy (cp.async) what is neither whole atoms, which the producer thread loads
 * as one piece, nor has boxes. */
enum sf_source { SF_ATOMS, SF_BOXES, SF_LANES };
template <class C, typename P> __device__ inline sf_source sf_source_of(const P &p, const sm90_gemm_params &params)
{
    if (C::HAS_SF_BOXES && params.has_sf_boxes) return SF_BOXES;
    return has_half_atoms<C>() || has_sf_rows<C>(p) ? SF_LANES : SF_ATOMS;
}

/* ---------------------------------------------------------------------------------------------------------------- */

/* Which consumer a thread is. */
typedef struct consumer {
    int consumer_group, warpgroup; /* which 64 weight rows of the group's stages */
    int thread, warp, lane;
} consumer;

template <class C> __device__ inline consumer consumer_of(int warpgroup)
{
    const int thread = threadIdx.x % WARPGROUP;
    return {warpgroup / C::WARPGROUPS, warpgroup % C::WARPGROUPS, thread, thread / 32, thread % 32};
}

#endif
