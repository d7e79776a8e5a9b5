/* What a CTA of sm90_gemm.cuh has: its configuration, its shared memory, its tiles and its part of K. */
#ifndef NK_SM90_GEMM_TILE_CUH
#define NK_SM90_GEMM_TILE_CUH

#include "cuda/expert.cuh"
#include "cuda/ptx/cluster.cuh"
#include "sm90_gemm_config.h"

enum { BARRIER_CTA, BARRIER_CONSUMERS };
enum { WARPGROUP = 128, RASTER = 32 /* row tiles that go through all token tiles together, for L2 */ };

enum operator_of_tile { GEMM, DUAL_GEMM, GROUPED_GEMM };

template <int OPERATOR_, bool BFLOAT_, int TOKENS_, int PARTS_, int CLUSTER_, int SLOTS_, int STEPS_, int EARLY_>
struct config {
    static constexpr bool EXPERTS = OPERATOR_ == GROUPED_GEMM;
    static constexpr bool DUAL =
        OPERATOR_ == DUAL_GEMM; /* dual_gemm: half of a tile's weight rows are gates, half ups */
    static constexpr int FEATURES = SM90_GEMM_ROWS / (DUAL ? 2 : 1);
    static constexpr bool BFLOAT = BFLOAT_, WIDE = SM90_GEMM_WIDE(TOKENS_), IS_DIVIDED = PARTS_ * CLUSTER_ > 1;
    static constexpr int TOKENS = TOKENS_, PARTS = PARTS_, CLUSTER = CLUSTER_, SLOTS = SLOTS_, STEPS = STEPS_;
    static constexpr int EARLY = EARLY_, CONSUMERS = 2 * WARPGROUP * PARTS, THREADS = SM90_GEMM_THREADS(TOKENS, PARTS);
    static constexpr int EIGHTS = TOKENS / 8, SUMS = TOKENS / 2; /* of a thread */
    static_assert(SLOTS % PARTS == 0 && EARLY <= SLOTS, "a part keeps its slots");
    static_assert(CLUSTER == 1 || EIGHTS % 2 == 0, "each CTA of a cluster ends half of the tokens");
};

template <class C> struct memory {
    struct slot {
        uint8_t codes[C::STEPS][SM90_GEMM_ROWS][SM90_GEMM_CODE_BYTES];
        uint8_t sf[C::STEPS][SM90_GEMM_SF_BYTES];
        uint8_t tokens[2 * C::STEPS][C::TOKENS][2 * SM90_GEMM_PANEL];
    } ring[C::SLOTS];
    struct {
        float4 eights[C::CLUSTER == 2 ? 2 : 0][C::EIGHTS / 2][WARPGROUP];
    } sums; /* of the peer, by warpgroup */
    uint64_t full[C::SLOTS], empty[C::SLOTS], sums_full;
    expert_scan<C::THREADS / 32> scan[C::EXPERTS ? 1 : 0];
    static_assert(C::PARTS == 1 || sizeof(ring) >= sizeof(float4) * 2 * C::EIGHTS * WARPGROUP, "part 1's sums fit");
};

typedef struct ring_place {
    int slot;
    uint32_t phase;
} ring_place;

template <int SLOTS> __device__ inline void advance(ring_place &r, int by)
{
    r.slot += by;
    if (r.slot < SLOTS) return;
    r.slot -= SLOTS;
    r.phase ^= 1;
}

/* Of this part. */
template <class C> __device__ inline int slot_before(const ring_place &r)
{
    return r.slot < C::PARTS ? r.slot + C::SLOTS - C::PARTS : r.slot - C::PARTS;
}

/* A tile: its batch, or its expert; its first weight row (of each matrix); its first token; the end of the expert's. */
typedef struct gemm_tile {
    int l, row, token, end;
} gemm_tile;

/* Experts share one batch of tokens. */
template <class C> __device__ inline int batch_of(const gemm_tile &tile) { return C::EXPERTS ? 0 : tile.l; }
template <class C> __device__ inline int64_t token_end(const gemm_tile &tile, int64_t m)
{
    return C::EXPERTS ? tile.end : m;
}

template <class C> __device__ inline gemm_tile tile_of(const sm90_gemm_work &work, int number)
{
    const int per_batch = work.row_tiles * work.token_tiles, l = number / per_batch, rest = number - l * per_batch;
    const int band = rest / (RASTER * work.token_tiles), rows = min(RASTER, work.row_tiles - band * RASTER);
    const int i = rest - band * RASTER * work.token_tiles;
    return {l, (band * RASTER + i % rows) * C::FEATURES, i / rows * C::TOKENS};
}

/* The tensor maps of the weights, and of the ups. */
typedef struct weight_maps {
    const cuda_tensor_map &first, &second;
} weight_maps;

__device__ inline const nk_operand &weights_of(const nk_gemm_problem &p, bool) { return p.b; }
__device__ inline const nk_operand &weights_of(const nk_dual_gemm_problem &p, bool second)
{
    return second ? p.b2 : p.b1;
}

/* Whether scale factors come by copies of each lane: whole atoms come as one piece. */
__device__ inline bool lanes_copy_sf(const nk_gemm_problem &p) { return p.b.sf_layout == NK_SF_LINEAR; }
__device__ inline bool lanes_copy_sf(const nk_dual_gemm_problem &) { return true; }

/* What a consumer thread is. */
typedef struct consumer {
    int part, rows; /* which 64 of the tile's weight rows */
    int thread, warp, lane;
} consumer;

/* The slots of K that this CTA has: begin .. end. */
typedef struct span {
    int begin, end;
} span;

template <class C> __device__ inline span span_of(const sm90_gemm_work &work)
{
    const int all = (work.steps + C::STEPS - 1) / C::STEPS;
    const int begin = C::CLUSTER == 1 ? 0 : (int)cluster_ctarank() * work.slots_per_cta;
    return {min(begin, all), min(begin + work.slots_per_cta, all)};
}

/* The expert's tile that this CTA has, by all its threads. An `end` of 0: none. */
template <class C>
__device__ inline gemm_tile find_tile(memory<C> &s, const sm90_gemm_work &work, const sm90_gemm_experts &e,
                                      int64_t rows)
{
    const int number = (int)blockIdx.x / C::CLUSTER, token_tile = number / work.row_tiles;
    const expert_tile found = find_expert<C::TOKENS>(s.scan[0], e.offsets, e.count, rows, (uint32_t)token_tile);
    if (!found.found) return {};
    const int row = number % work.row_tiles * C::FEATURES;
    return {(int)found.expert, row, (int)found.first, (int)found.end};
}

/* Calls f(tile) for each tile of this CTA, or for the one of this cluster; for an expert's, `only`. */
template <class C, typename F> __device__ inline void each_tile(const sm90_gemm_work &work, const gemm_tile &only, F f)
{
    if constexpr (C::EXPERTS) {
        f(only);
    } else if constexpr (C::IS_DIVIDED) {
        f(tile_of<C>(work, (int)blockIdx.x / C::CLUSTER));
    } else {
#pragma unroll 1
        for (int t = (int)blockIdx.x; t < work.tiles; t += (int)gridDim.x)
            f(tile_of<C>(work, t));
    }
}

#endif
