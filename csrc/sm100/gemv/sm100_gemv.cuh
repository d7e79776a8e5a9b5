/* What the kernels for few tokens on Blackwell have in common: which rows and steps a warp has, and its weights. */
#ifndef NK_SM100_GEMV_CUH
#define NK_SM100_GEMV_CUH

#include "cuda/operand.cuh"
#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/global.cuh"
#include "sm100_gemv_config.h"

enum { LINEAR, BLOCKED, NARROW };

constexpr int OCTETS = SM100_GEMV_OCTETS, AHEAD = SM100_GEMV_AHEAD, CODE_WORDS = SM100_GEMV_CHUNK / 8;
constexpr int CODE_BYTES = SM100_GEMV_CHUNK / 2, FACTORS = SM100_GEMV_CHUNK / NK_SF_VEC;

extern __shared__ uint4 smem[];

__device__ inline sm100_gemv_head &head() { return *(sm100_gemv_head *)smem; }

/* What a CTA and one of its warps have to do. */
typedef struct warp_work {
    int64_t l, first;                /* batch; the cluster's first position */
    int positions;                   /* of the cluster */
    int rank, first_k_step, k_steps; /* of the CTA */
    int steps, tile, k_step;         /* of the warp: how many, where it begins */
} warp_work;

__device__ inline warp_work work_of_warp(const sm100_gemv_work &s)
{
    warp_work w;
    w.l = blockIdx.x / s.clusters;
    w.first = (int64_t)(blockIdx.x - (int)w.l * s.clusters) * s.rows;
    w.positions = (int)min((int64_t)s.rows, s.positions - w.first);
    w.rank = blockIdx.y;
    w.first_k_step = w.rank * s.k_steps;
    w.k_steps = min(s.k_steps, s.all_k_steps - w.first_k_step);
    const int tiles = (w.positions + SM100_GEMV_ROWS - 1) / SM100_GEMV_ROWS;
    const int first = threadIdx.x / 32 * s.steps_per_warp;
    w.steps = max(0, min(s.steps_per_warp, tiles * w.k_steps - first));
    w.tile = w.steps ? first / w.k_steps : 0;
    w.k_step = w.steps ? first - w.tile * w.k_steps : 0;
    return w;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Weights: lane (g, c) = (lane / 4, lane % 4) takes chunk c of row g of each octet                                 */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct weights {
    uint32_t codes[OCTETS][CODE_WORDS];
    uint32_t sf[OCTETS]; /* without signs */
} weights;

/* The lane's chunks of the step that is fetched next. */
typedef struct cursor {
    const uint8_t *codes[OCTETS], *sf[OCTETS];
    int tile, k_step, left; /* left: steps that the warp has yet to fetch */
} cursor;

__device__ inline int chunk_of(const warp_work &w, const cursor &at)
{
    return (w.first_k_step + at.k_step) * 4 + (int)(threadIdx.x & 3);
}

/* Rows that are not there are others again: their sums are not stored. Blocked scale factors are still those of their
 * own position, which padding has. */
template <int ACCESS> __device__ inline void enter_tile(const nk_gemm_problem &p, const warp_work &w, cursor &at)
{
    const int64_t chunk = chunk_of(w, at), factors = p.k / NK_SF_VEC;
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
        const int here = at.tile * SM100_GEMV_ROWS + o * SM100_GEMV_OCTET + (int)(threadIdx.x >> 2 & 7);
        const int64_t position = w.first + min(here, w.positions - 1);
        const int64_t row = min(sm100_gemv_row(position, ACCESS == BLOCKED), p.n - 1);
        at.codes[o] = p.b.data + w.l * p.b.batch_stride + row * p.b.row_stride + chunk * CODE_BYTES;
        at.sf[o] = sf_at(p.b, w.l, row, chunk * FACTORS, factors);
    }
}

__device__ inline void advance_codes(const nk_gemm_problem &p, cursor &at)
{
    const int factors = p.b.sf_layout == NK_SF_BLOCKED ? 4 * NK_SF_ATOM_BYTES : 4 * FACTORS;
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
        at.codes[o] += 4 * CODE_BYTES;
        at.sf[o] += factors;
    }
}

template <int ACCESS> __device__ inline void advance(const nk_gemm_problem &p, const warp_work &w, cursor &at)
{
    at.left--;
    if (++at.k_step < w.k_steps) return advance_codes(p, at);
    at.k_step = 0;
    at.tile++;
    if (at.left > 0) enter_tile<ACCESS>(p, w, at);
}

__device__ inline uint32_t fetch_factors(const uint8_t *at, int count)
{
    uint32_t sf = 0;
#pragma unroll
    for (int i = 0; i < FACTORS; i++)
        if (i < count) sf |= (uint32_t)at[i] << 8 * i;
    return sf;
}

/* Asks for a step, if there is one. Beyond K are zeros. */
template <int ACCESS>
__device__ inline void fetch(const nk_gemm_problem &p, const warp_work &w, cursor &at, weights &to)
{
    const int elements = (int)min(p.k - (int64_t)chunk_of(w, at) * SM100_GEMV_CHUNK, (int64_t)SM100_GEMV_CHUNK);
    if (at.left <= 0) return;
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
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
            to.sf[o] = fetch_factors(at.sf[o], elements / NK_SF_VEC) & 0x7F7F7F7F;
        } else {
            ld_global_v8_evict_first(at.codes[o], to.codes[o]);
            to.sf[o] = *(const uint32_t *)at.sf[o] & 0x7F7F7F7F;
        }
    }
    advance<ACCESS>(p, w, at);
}

/* The first steps' codes to L2, as long as they are of one tile: what the program cannot see. */
__device__ inline void prefetch(const nk_gemm_problem &p, const warp_work &w, const cursor &at)
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        const int64_t k = (chunk_of(w, at) + 4 * i) * (int64_t)SM100_GEMV_CHUNK;
        const bool there = i < at.left && at.k_step + i < w.k_steps && k < p.k;
#pragma unroll
        for (int o = 0; o < OCTETS; o++)
            prefetch_global_l2_if(there, at.codes[o] + i * 4 * CODE_BYTES);
    }
}

/* PRODUCTS::step(weights, k_step) multiplies, PRODUCTS::end_tile(tile) keeps the sums. */
template <int ACCESS, typename PRODUCTS>
__device__ inline void main_loop(const nk_gemm_problem &p, const warp_work &w, cursor &ahead, weights ring[AHEAD],
                                 PRODUCTS &products)
{
    int tile = w.tile, k_step = w.k_step;
#pragma unroll 1
    for (int done = 0; done < w.steps;) {
#pragma unroll
        for (int slot = 0; slot < AHEAD; slot++) {
            if (done == w.steps) break;
            products.step(ring[slot], k_step);
            fetch<ACCESS>(p, w, ahead, ring[slot]);
            done++;
            if (++k_step < w.k_steps && done < w.steps) continue;
            products.end_tile(tile++);
            k_step = 0;
        }
    }
}

#endif
