/* What the kernels for few tokens on Blackwell share: which rows and steps a warp has, and its pipeline of weights. */
#ifndef NK_GEMV_STEPS_CUH
#define NK_GEMV_STEPS_CUH

#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/global.cuh"
#include "gemv_config.h"
#include "operand.cuh"
#include "sf_layout.cuh"

/* How weights are read. LINEAR and BLOCKED, the layouts of scale factors, need aligned addresses and K % 64 = 0. NARROW
 * reads byte by byte, in both layouts. */
enum { LINEAR, BLOCKED, NARROW };

constexpr int M8S = GEMV_TILE_M8S, STAGES = GEMV_STAGES, CODE_WORDS = GEMV_CHUNK / 8;
constexpr int CODE_BYTES = GEMV_CHUNK / 2, FACTORS = GEMV_CHUNK / NK_SF_VEC;

extern __shared__ uint4 smem[];

__device__ inline gemv_head &head() { return *(gemv_head *)smem; }

/* The steps of a CTA, and of one of its warps. */
typedef struct warp_schedule {
    int64_t l, first;                /* batch; the cluster's first position */
    int positions;                   /* of the cluster */
    int rank, first_k_step, k_steps; /* of the CTA in its cluster */
    int steps, tile, k_step;         /* how many the warp has, and where it begins */
} warp_schedule;

__device__ inline warp_schedule schedule_of_warp(const gemv_scheduler &s)
{
    warp_schedule w;
    w.l = blockIdx.x / s.clusters;
    w.first = (int64_t)(blockIdx.x - (int)w.l * s.clusters) * s.rows;
    w.positions = (int)min((int64_t)s.rows, s.positions - w.first);
    w.rank = blockIdx.y;
    w.first_k_step = w.rank * s.k_steps;
    w.k_steps = min(s.k_steps, s.all_k_steps - w.first_k_step);
    const int tiles = (w.positions + GEMV_TILE_ROWS - 1) / GEMV_TILE_ROWS;
    const int first = threadIdx.x / 32 * s.steps_per_warp;
    w.steps = max(0, min(s.steps_per_warp, tiles * w.k_steps - first));
    w.tile = w.steps ? first / w.k_steps : 0;
    w.k_step = w.steps ? first - w.tile * w.k_steps : 0;
    return w;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Weights: lane (g, c) = (lane / 4, lane % 4) takes chunk c of row g of each 8 rows                                */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct weight_stage {
    uint32_t codes[M8S][CODE_WORDS];
    uint32_t sf[M8S]; /* without signs */
} weight_stage;

/* Where the lane's chunks of the next step to fetch lie. */
typedef struct stage_cursor {
    const uint8_t *codes[M8S], *sf[M8S];
    int tile, k_step, left; /* left: steps still to fetch */
} stage_cursor;

__device__ inline int chunk_index(const warp_schedule &w, const stage_cursor &at)
{
    return (w.first_k_step + at.k_step) * 4 + (int)(threadIdx.x & 3);
}

/* Rows that do not exist repeat the last one: their sums are not stored. Their positions exist in blocked scale
 * factors, as padding. */
template <int ACCESS>
__device__ inline void point_at_tile(const nk_gemm_problem &p, const warp_schedule &w, stage_cursor &at)
{
    const int64_t chunk = chunk_index(w, at), factors = p.k / NK_SF_VEC;
#pragma unroll
    for (int o = 0; o < M8S; o++) {
        const int here = at.tile * GEMV_TILE_ROWS + o * GEMV_M8 + (int)(threadIdx.x >> 2 & 7);
        const int64_t position = w.first + min(here, w.positions - 1);
        const int64_t row = min(gemv_row(position, ACCESS == BLOCKED), p.n - 1);
        at.codes[o] = p.b.data + w.l * p.b.batch_stride + row * p.b.row_stride + chunk * CODE_BYTES;
        at.sf[o] = sf_at(p.b, w.l, row, chunk * FACTORS, factors);
    }
}

__device__ inline void advance_k(const nk_gemm_problem &p, stage_cursor &at)
{
    const int factors = 4 * sf_next_four(p.b);
#pragma unroll
    for (int o = 0; o < M8S; o++) {
        at.codes[o] += 4 * CODE_BYTES;
        at.sf[o] += factors;
    }
}

template <int ACCESS>
__device__ inline void advance_step(const nk_gemm_problem &p, const warp_schedule &w, stage_cursor &at)
{
    at.left--;
    if (++at.k_step < w.k_steps) return advance_k(p, at);
    at.k_step = 0;
    at.tile++;
    if (at.left > 0) point_at_tile<ACCESS>(p, w, at);
}

__device__ inline uint32_t load_narrow_sf(const uint8_t *at, int count)
{
    uint32_t sf = 0;
#pragma unroll
    for (int i = 0; i < FACTORS; i++)
        if (i < count) sf |= (uint32_t)at[i] << 8 * i;
    return sf;
}

/* Loads a step into a stage, if there is one. Beyond K are zeros. */
template <int ACCESS>
__device__ inline void fetch_weight_step(const nk_gemm_problem &p, const warp_schedule &w, stage_cursor &at,
                                         weight_stage &to)
{
    const int elements = (int)min(p.k - (int64_t)chunk_index(w, at) * GEMV_CHUNK, (int64_t)GEMV_CHUNK);
    if (at.left <= 0) return;
#pragma unroll
    for (int o = 0; o < M8S; o++) {
        if (elements <= 0) {
#pragma unroll
            for (int i = 0; i < CODE_WORDS; i++)
                to.codes[o][i] = 0;
            to.sf[o] = 0;
        } else if (ACCESS == NARROW) {
            const uint4 low = fetch_bytes(at.codes[o], elements / 2),
                        high = fetch_bytes(at.codes[o] + 16, elements / 2 - 16);
            const uint32_t words[CODE_WORDS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int i = 0; i < CODE_WORDS; i++)
                to.codes[o][i] = words[i];
            to.sf[o] = load_narrow_sf(at.sf[o], elements / NK_SF_VEC) & 0x7F7F7F7F;
        } else {
            ld_global_v8_evict_first(at.codes[o], to.codes[o]);
            to.sf[o] = *(const uint32_t *)at.sf[o] & 0x7F7F7F7F;
        }
    }
    advance_step<ACCESS>(p, w, at);
}

/* Brings the first steps' codes to L2, as far as they belong to one tile: a program cannot see that. */
__device__ inline void prefetch_steps(const nk_gemm_problem &p, const warp_schedule &w, const stage_cursor &at)
{
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        const int64_t k = (chunk_index(w, at) + 4 * i) * (int64_t)GEMV_CHUNK;
        const bool there = i < at.left && at.k_step + i < w.k_steps && k < p.k;
#pragma unroll
        for (int o = 0; o < M8S; o++)
            prefetch_global_l2_if(there, at.codes[o] + i * 4 * CODE_BYTES);
    }
}

/* MMA::step(stage, k_step) multiplies, MMA::store_partials(tile) keeps the sums of the warp's steps of a tile. */
template <int ACCESS, typename MMA>
__device__ inline void few_tokens_mainloop(const nk_gemm_problem &p, const warp_schedule &w, stage_cursor &ahead,
                                           weight_stage stages[STAGES], MMA &mma)
{
    int tile = w.tile, k_step = w.k_step;
#pragma unroll 1
    for (int done = 0; done < w.steps;) {
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {
            if (done == w.steps) break;
            mma.step(stages[stage], k_step);
            fetch_weight_step<ACCESS>(p, w, ahead, stages[stage]);
            done++;
            if (++k_step < w.k_steps && done < w.steps) continue;
            mma.store_partials(tile++);
            k_step = 0;
        }
    }
}

#endif
