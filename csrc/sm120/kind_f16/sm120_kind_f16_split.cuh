/* gemm and dual_gemm whose tiles may be divided along K among CTAs, so that few tiles keep many SMs busy.
 *
 * Work: an iteration of the scheduler is a part of a tile. Of S steps, part i of P has S i / P up to S (i + 1) / P: a
 * tile of less K, whose rows begin further on. A CTA writes its sums to the workspace and counts itself. The one that
 * counts last adds the sums of all parts in the order of K, its own among them, and stores the tile: so every run has
 * the same bits.
 *
 * Barriers, of the CTA (__syncthreads), beside those of sm120_tile.cuh:
 *   all threads, whose sums are in the workspace -> thread 0, which counts
 *   thread 0, which has counted                  -> all threads, which add if the CTA is the last */
#ifndef NK_SM120_KIND_F16_SPLIT_CUH
#define NK_SM120_KIND_F16_SPLIT_CUH

#include "cuda/counters.cuh"
#include "sm120/gemm/sm120_operators.cuh"
#include "sm120_kind_f16_config.h"

/* A part of a tile. */
typedef struct sm120_split_tile : sm120_batch_tile {
    uint32_t iters, part; /* iters: parts of the tile */
} sm120_split_tile;

/* An OPERATOR of gemm or dual_gemm, by CTAs of THREADS. */
template <typename OPERATOR, int THREADS> struct sm120_split_operator : OPERATOR {
    static constexpr bool DIVIDES = true;
    const sm120_split &split;

    template <typename PROBLEM>
    __device__ sm120_split_operator(const PROBLEM &p, const sm120_gemm_scheduler &q, const sm120_split &split)
        : OPERATOR(p, q), split(split)
    {
        this->scheduler.iters *= split.parts;
    }

    __device__ sm120_split_tile tile_of(uint32_t iter) const
    {
        sm120_split_tile at = {OPERATOR::tile_of(iter / split.parts), split.parts, iter % split.parts};
        at.first_iter = iter - at.part;
        return at;
    }

    /* Elements of K before a part of the tile. */
    __device__ int64_t before(const sm120_split_tile &tile, uint32_t part) const
    {
        const int64_t steps = nk_ceil_div(this->p.k, SM120_KIND_F16_STEP);
        return min(steps * part / tile.iters * SM120_KIND_F16_STEP, this->p.k);
    }

    __device__ int64_t k(const sm120_split_tile &tile) const
    {
        return before(tile, tile.part + 1) - before(tile, tile.part);
    }

    __device__ sm120_row token(const sm120_split_tile &tile, int i) const
    {
        return {OPERATOR::token(tile, i).data + before(tile, tile.part) * 2, NULL};
    }

    __device__ sm120_row weight(const sm120_split_tile &tile, int i) const
    {
        const sm120_row row = OPERATOR::weight(tile, i);
        const int64_t first = before(tile, tile.part);
        return {row.data + first / 2, row.sf + first / SM120_KIND_F16_STEP * this->weight_sf_step(tile)};
    }

    template <typename SUMS> __device__ bool completes(const sm120_split_tile &tile, SUMS &sums) const
    {
        constexpr int QUADS = sizeof sums.acc / sizeof(float4);
        if (tile.iters == 1) return true;
        auto &acc = *(float(*)[QUADS][4]) & sums.acc;
        uint64_t *counter = split.counters + tile.first_iter / tile.iters;
        if (threadIdx.x == 0) prepare_counter(counter, split.base, tile.iters);
#pragma unroll
        for (int i = 0; i < QUADS; i++)
            *partials_at(split.partials, tile.first_iter + tile.part, QUADS, i, THREADS) =
                make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
        __shared__ bool last;
        __syncthreads();
        if (threadIdx.x == 0) {
            last = add_and_publish(counter, split.base, 1) == tile.iters - 1;
            if (last) spoil_counter(counter, split.base);
        }
        __syncthreads();
        if (!last) return false;
        sums = {};
#pragma unroll 16 / QUADS
        for (uint32_t part = 0; part < tile.iters; part++) {
#pragma unroll
            for (int i = 0; i < QUADS; i++) {
                const float4 v = __ldcg(partials_at(split.partials, tile.first_iter + part, QUADS, i, THREADS));
                acc[i][0] += v.x;
                acc[i][1] += v.y;
                acc[i][2] += v.z;
                acc[i][3] += v.w;
            }
        }
        return true;
    }
};

#define SM120_SPLIT_GEMM_PARAMETERS SM120_GEMM_PARAMETERS, const __grid_constant__ sm120_split split
#define SM120_SPLIT_GEMM_OPERATOR(TILE_M, WARPS_M) \
    sm120_split_operator<sm120_gemm_operator<TILE_M, WARPS_M>, SM120_GEMM_THREADS(WARPS_M)>(p, q, split)
#define SM120_SPLIT_DUAL_GEMM_PARAMETERS SM120_DUAL_GEMM_PARAMETERS, const __grid_constant__ sm120_split split
#define SM120_SPLIT_DUAL_GEMM_OPERATOR(TILE_M, WARPS_M) \
    sm120_split_operator<sm120_dual_gemm_operator<TILE_M, WARPS_M>, SM120_GEMM_THREADS(WARPS_M)>(p, q, split)

#endif
