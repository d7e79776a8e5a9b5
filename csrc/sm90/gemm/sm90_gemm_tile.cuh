/* What a CTA of sm90_gemm.cuh has: its configuration, its shared memory, its tiles and its part of K. */
#ifndef NK_SM90_GEMM_TILE_CUH
#define NK_SM90_GEMM_TILE_CUH

#include "cuda/expert.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/shared.cuh"
#include "gemm/gemm_gated.h"
#include "sm90_gemm_config.h"
#include "sm90_list_params.h"

#include <stddef.h>

enum { BARRIER_CTA, BARRIER_CONSUMERS, BARRIER_PAIRS, BARRIERS = 16 }; /* a number for each pair of warps */
enum { WARPGROUP = 128, RASTER = 32 /* row tiles that go through all token tiles together, for L2 */ };

enum operator_of_tile { GEMM, DUAL_GEMM, GROUPED_GEMM, GROUPED_DUAL_GEMM, LIST_GEMM };

/* Tokens of a tile that may be one of several sizes. */
template <int TOKENS_> struct width {
    static constexpr int TOKENS = TOKENS_;
};
template <int... TOKENS> struct widths {
    /* Calls f(width) with that of this number. */
    template <typename F> __device__ static void call(int number, F f)
    {
        int i = 0;
        ((i++ == number ? f(width<TOKENS>()) : void()), ...);
    }
};

template <int OPERATOR_, bool BFLOAT_, int TOKENS_, int ROWS_, int PARTS_, int CLUSTER_, int SLOTS_, int STEPS_,
          int EARLY_, int... WIDTHS_>
struct config {
    typedef widths<WIDTHS_...> WIDTHS; /* of a list's tiles */
    static constexpr bool LIST = OPERATOR_ == LIST_GEMM;
    static constexpr bool EXPERTS = OPERATOR_ == GROUPED_GEMM || OPERATOR_ == GROUPED_DUAL_GEMM;
    static constexpr bool JOINED = LIST || EXPERTS; /* tokens of many products are rows of one matrix */
    /* Half of a slot's weight rows are gates, half ups. */
    static constexpr bool DUAL = OPERATOR_ == DUAL_GEMM || OPERATOR_ == GROUPED_DUAL_GEMM;
    static constexpr int SLOT_ROWS = SM90_GEMM_STAGE_N(ROWS_), WARPGROUPS = SLOT_ROWS / 64; /* of a team */
    static constexpr int FEATURES = SLOT_ROWS / (DUAL ? 2 : 1);                             /* of a slot */
    static constexpr int SF_PIECES = SM90_GEMM_SF_ATOMS_N(SLOT_ROWS, DUAL ? 2 : 1);
    static constexpr int BANDS = ROWS_ / SLOT_ROWS;  /* of weight rows; a part has its own if two */
    static constexpr int DIVISIONS = PARTS_ / BANDS; /* of a CTA's K */
    static constexpr bool BFLOAT = BFLOAT_, WIDE = SM90_GEMM_HAS_PRODUCER_WARPGROUP(TOKENS_, ROWS_),
                          IS_DIVIDED = DIVISIONS * CLUSTER_ > 1;
    static constexpr int TOKENS = TOKENS_, PARTS = PARTS_, CLUSTER = CLUSTER_, SLOTS = SLOTS_, STEPS = STEPS_;
    static constexpr int EARLY = EARLY_, CONSUMERS = WARPGROUPS * WARPGROUP * PARTS;
    static constexpr int THREADS = SM90_GEMM_THREADS(TOKENS, ROWS_, PARTS);
    static constexpr int SMEM = SM90_GEMM_SMEM(TOKENS, ROWS_, CLUSTER, SLOTS, STEPS, DUAL ? 2 : 1);
    static constexpr int EIGHTS = TOKENS / 8, SUMS = TOKENS / 2; /* of a thread */
    static constexpr int OF_PART = EIGHTS / DIVISIONS;           /* eights that a part has once parts are joined */
    static constexpr bool BOTH_END = OF_PART % 2 == 0;           /* both CTAs of a cluster end half of them */
    static_assert(SLOTS % PARTS == 0 && EARLY <= SLOTS, "a part keeps its slots");
    static_assert(EIGHTS % DIVISIONS == 0 && (CLUSTER == 1 || BOTH_END || DIVISIONS == 2), "each CTA ends some eights");
    static_assert(!EXPERTS || !IS_DIVIDED, "offsets may change while CTAs read them: a cluster could part");
    static_assert(!LIST || (!IS_DIVIDED && BANDS == 1), "a list's tiles are plain");
    static_assert(BANDS == 1 || (PARTS == 2 && CLUSTER == 1), "two bands are two parts'");
    static constexpr int ENCODERS = OPERATOR_ == GROUPED_DUAL_GEMM ? CONSUMERS / 32 : 0; /* warps */
    static_assert(BARRIER_PAIRS + ENCODERS / 2 <= BARRIERS, "as many as a CTA has");
};

template <class C> struct gemm_memory {
    struct slot {
        uint8_t codes[C::STEPS][C::SLOT_ROWS][SM90_GEMM_CODE_BYTES];
        uint8_t sf[C::SF_PIECES][C::STEPS][SM90_GEMM_SF_BYTES]; /* of atoms; others lie one behind the other */
        uint8_t tokens[2 * C::STEPS][C::TOKENS][2 * SM90_GEMM_SWIZZLE_K];
    } ring[C::SLOTS];
    struct {
        float4 eights[C::CLUSTER == 1 ? 0
                      : C::BOTH_END   ? C::WARPGROUPS * C::PARTS
                                      : C::WARPGROUPS][C::BOTH_END ? C::OF_PART / 2 : 1][WARPGROUP];
    } sums; /* of the peer, by warpgroup */
    uint64_t full[C::SLOTS], empty[C::SLOTS], sums_full;
    expert_scan<C::THREADS / 32> scan[C::EXPERTS ? 1 : 0];
    uint32_t sf[C::ENCODERS][8]; /* what a warp's features want, see encode() */
    int2 experts[];              /* see list_experts() */
};

/* Shared addresses, kept in registers: the compiler would work them out again for each slot. */
template <class C> struct addresses {
    typedef typename gemm_memory<C>::slot slot;
    uint32_t ring, barriers;

    __device__ explicit addresses(const gemm_memory<C> &s)
        : ring(kept(shared_address(s.ring))), barriers(kept(shared_address(s.full)))
    {
        static_assert(offsetof(gemm_memory<C>, empty) == offsetof(gemm_memory<C>, full) + 8 * C::SLOTS,
                      "they are neighbours");
    }
    __device__ uint32_t slot_at(int i) const { return ring + i * (uint32_t)sizeof(slot); }
    __device__ uint32_t full(int i) const { return barriers + i * 8; }
    __device__ uint32_t empty(int i) const { return barriers + (C::SLOTS + i) * 8; }
};

typedef struct ring_at {
    int slot;
    uint32_t phase;
} ring_at;

template <int SLOTS> __device__ inline void advance(ring_at &r, int by)
{
    r.slot += by;
    if (r.slot < SLOTS) return;
    r.slot -= SLOTS;
    r.phase ^= 1;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Tiles                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A tile: its batch, its expert or its group; its first weight row (of each matrix); its first token; the end of the
 * expert's, or the group's. */
typedef struct gemm_tile {
    int l, row, token, end;
} gemm_tile;

/* Experts, or groups, share one batch of tokens. */
template <class C> __device__ inline int batch_of(const gemm_tile &tile) { return C::JOINED ? 0 : tile.l; }
template <class C> __device__ inline int64_t token_end(const gemm_tile &tile, int64_t m)
{
    return C::JOINED ? tile.end : m;
}

/* All tiles. */
typedef struct gemm_tiles {
    const sm90_gemm_scheduler &scheduler;
    const int2 *experts; /* their list, and how many */
    int64_t expert_count;
    int count;
    const sm90_list *list; /* of groups, or null */
} gemm_tiles;

template <typename P> __device__ inline const sm90_list *list_of(const P &) { return nullptr; }
__device__ inline const sm90_list *list_of(const sm90_list &list) { return &list; }

/* Tiles of the same weights are neighbours. */
__device__ inline gemm_tile tile_of_list(const sm90_list &list, int number, int features)
{
    int g = 0;
    while (g + 1 < list.count && list.group[g + 1].first_tile <= number)
        g++;
    const sm90_list_group &group = list.group[g];
    const int i = number - group.first_tile, row = i / group.scheduler.m_tiles, m = i - row * group.scheduler.m_tiles;
    return {g, row * features, group.first_row + m * group.tile_m, group.first_row + (int)group.gemm.m};
}

template <class C> __device__ inline gemm_tile tile_of(const gemm_tiles &of, int number)
{
    const sm90_gemm_scheduler &scheduler = of.scheduler;
    if constexpr (C::EXPERTS) { /* tiles of the same tokens are neighbours */
        const int token_tile = number / scheduler.n_tiles;
        const int row = (number - token_tile * scheduler.n_tiles) * C::BANDS * C::FEATURES;
        const int expert = expert_of_tile(of.experts, of.expert_count, token_tile);
        const int2 begin = of.experts[expert];
        return {expert, row, begin.y + (token_tile - begin.x) * C::TOKENS, of.experts[expert + 1].y};
    } else {
        const int per_batch = scheduler.n_tiles * scheduler.m_tiles, l = number / per_batch,
                  rest = number - l * per_batch;
        const int raster = rest / (RASTER * scheduler.m_tiles), rows = min(RASTER, scheduler.n_tiles - raster * RASTER);
        const int i = rest - raster * RASTER * scheduler.m_tiles;
        return {l, (raster * RASTER + i % rows) * C::BANDS * C::FEATURES, i / rows * C::TOKENS, 0};
    }
}

/* Calls f(tile) for each tile of this CTA, or for the one of this cluster. */
template <class C, typename F> __device__ inline void each_tile(const gemm_tiles &tiles, F f)
{
    int t = (int)blockIdx.x / C::CLUSTER;
    if constexpr (C::IS_DIVIDED) {
        f(tile_of<C>(tiles, t));
    } else if constexpr (C::LIST) { /* forth and back: who had a long tile has a short one next */
        const int ctas = (int)gridDim.x;
#pragma unroll 1
        for (int first = 0; first < tiles.count; first += ctas, t = ctas - 1 - t)
            if (first + t < tiles.count) f(tile_of_list(*tiles.list, first + t, C::FEATURES));
    } else {
#pragma unroll 1
        for (; t < tiles.count; t += (int)gridDim.x)
            f(tile_of<C>(tiles, t));
    }
}

/* The tile as a slot of band 1 has it. Where no weights are left it is the last rows again, which nobody stores. */
template <class C, typename P> __device__ inline gemm_tile band_of(const P &p, gemm_tile tile, int band)
{
    if (band && tile.row + C::FEATURES < p.n) tile.row += C::FEATURES;
    return tile;
}

/* The slots of K that this CTA has: begin .. end. */
typedef struct span {
    int begin, end;
} span;

template <class C> __device__ inline span span_of(const sm90_gemm_scheduler &scheduler)
{
    const int all = (scheduler.k_steps + C::STEPS - 1) / C::STEPS;
    const int begin = C::CLUSTER == 1 ? 0 : (int)cluster_ctarank() * scheduler.k_tiles_per_cta;
    return {min(begin, all), min(begin + scheduler.k_tiles_per_cta, all)};
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Weights                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The tensor maps of the weights, and of the ups. */
typedef struct weight_maps {
    const cuda_tensor_map &first, &second;
} weight_maps;

__device__ inline const nk_operand &weights_of(const nk_gemm_problem &p, bool) { return p.b; }
__device__ inline const nk_operand &weights_of(const nk_dual_gemm_problem &p, bool second)
{
    return second ? p.b2 : p.b1;
}

__device__ inline const nk_operand &weights_of(const gemm_gated &p, bool second) { return second ? p.b2 : p.b1; }
__device__ inline const nk_operand &weights_of(const sm90_list &list, bool) { return list.group[0].gemm.b; } /* alike */

/* Whether scale factors come by copies of each lane: whole atoms come as one piece. Of a slot with 64 rows of each of
 * two matrices they would be twice the bytes. */
template <class C, typename P> __device__ inline bool lanes_copy_sf(const P &p)
{
    return (C::DUAL && C::SF_PIECES == 1) || weights_of(p, 0).sf_layout == NK_SF_LINEAR;
}

/* What a consumer thread is. */
typedef struct consumer {
    int part, rows; /* which 64 of the slot's weight rows */
    int thread, warp, lane;
} consumer;

template <class C> __device__ inline consumer consumer_of(int warpgroup)
{
    const int thread = threadIdx.x % WARPGROUP;
    return {warpgroup / C::WARPGROUPS, warpgroup % C::WARPGROUPS, thread, thread / 32, thread % 32};
}

#endif
