/* The kernels that gemm, dual_gemm, grouped_gemm and grouped_dual_gemm share.
 *
 * A tile is 128 weight rows x TILE_M tokens. An OPERATOR says what an operator does with it:
 * - scheduler, tile_of(iter): the tiles, see cuda/stream_k.cuh; a tile is one iteration. A tile has .token and .end.
 * - k(tile): K.
 * - weight(tile, i), token(tile, i): where row i of either begins; weight_sf_step, token_sf_step: from four scale
 *   factors of a row to the next four.
 * - row_scale(tile): its factors of tokens, and which of them a token has, row_scale_at(tile, token).
 * - store(staged, tile): the epilogue.
 *
 * Roles: all warps alike, see sm120_mainloop.cuh.
 *
 * Barriers, all of the CTA (__syncthreads):
 *   the warps that multiply -> the warps that stage sums   behind the main loop: sums overwrite the stages
 *   the threads that hold sums -> the threads that store   once a tile's sums are staged
 *   the threads that store -> the next tile's copies       between a CTA's tiles */
#ifndef NK_SM120_GEMM_CUH
#define NK_SM120_GEMM_CUH

#include "cuda/epilogue.cuh"
#include "cuda/groups.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/stream_k.cuh"
#include "sm120_gemm_params.h"
#include "sm120_mainloop.cuh"

extern __shared__ __align__(128) uint4 sm120_smem[];

template <int TILE_M, int STAGES> union sm120_memory {
    sm120_stage<TILE_M> stages[STAGES];
    staged_tile<TILE_M, SM120_GEMM_TILE_N> sums;
};

/* All steps of a tile. Ends when no thread reads a stage any more. */
template <int TILE_M, int WARPS_M, int STAGES, typename OPERATOR, typename TILE, int TILES>
__device__ inline void sm120_mainloop(const OPERATOR &op, const TILE &tile, sm120_stage<TILE_M> (&stages)[STAGES],
                                      int quads, int first_token, sm120_sums<TILES> &sums)
{
    sm120_source<TILE_M, WARPS_M> source;
    source.point(op, tile);
    const int steps = (int)nk_ceil_div(source.k, SM120_GEMM_STEP);
#pragma unroll 1
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) source.fetch(stages[step], step);
        cp_async_commit_group();
    }
    int stage = 0, free_stage = STAGES - 1;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) source.fetch(stages[free_stage], step + STAGES - 1);
        cp_async_commit_group();
        sums.multiply(stages[stage], quads, first_token);
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    __syncthreads();
}

template <int TILE_M, int WARPS_M, int STAGES, typename OPERATOR, typename TILE>
__device__ inline void sm120_multiply_tile(const OPERATOR &op, const TILE &tile)
{
    using memory = sm120_memory<TILE_M, STAGES>;
    static_assert(sizeof(memory) == SM120_GEMM_SMEM(TILE_M, STAGES), "what the host asks for");
    constexpr int TOKENS = TILE_M / WARPS_M, TILES = TOKENS / 8;
    auto &s = *(memory *)sm120_smem;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, quads = warp % 4 * 8, first_token = warp / 4 * TOKENS;
    sm120_sums<TILES> sums = {};
    sm120_mainloop<TILE_M, WARPS_M, STAGES>(op, tile, s.stages, quads, first_token, sums);
    sums.spread_nans();
    const nk_row_scale scale = op.row_scale(tile);
#pragma unroll
    for (int j = 0; j < TILES; j++) {
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            const int token = first_token + 8 * j + lane % 4 * 2 + odd;
            const bool scales = scale.data && tile.token + token < tile.end;
            const float factor = scales ? scale.data[op.row_scale_at(tile, tile.token + token)] : 1.0f;
            float *at = s.sums.of(token) + quads + lane / 4;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float sum = sums.acc[i / 2][j][i % 2 * 2 + odd];
                at[32 * i] = scales ? __fmul_rn(sum, factor) : sum;
            }
        }
    }
    __syncthreads();
    op.store(s.sums, tile);
}

template <int TILE_M, int WARPS_M, int STAGES, typename OPERATOR>
__device__ inline void sm120_multiply(const OPERATOR &op)
{
    stream_k_for_each_tile(
        op, [&](const auto &tile, uint32_t, uint32_t) { sm120_multiply_tile<TILE_M, WARPS_M, STAGES>(op, tile); });
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* gemm and dual_gemm                                                                                               */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A tile of a batch. */
typedef struct sm120_batch_tile {
    static constexpr bool found = true;
    static constexpr uint32_t iters = 1;
    uint32_t first_iter;
    uint32_t l, n_tile;
    int64_t token, end;
} sm120_batch_tile;

/* All of an OPERATOR but its weight rows and its epilogue, of FEATURES a tile. Tiles of the same weights are
 * neighbours, so that they find them in L2. */
template <typename PROBLEM, int TILE_M, int WARPS_M, int FEATURES> struct sm120_batch_operator {
    const PROBLEM &p;
    const sm120_gemm_scheduler &q;
    stream_k scheduler;

    __device__ sm120_batch_operator(const PROBLEM &p, const sm120_gemm_scheduler &q) : p(p), q(q), scheduler{q.tiles, 1}
    {
    }

    __device__ sm120_batch_tile tile_of(uint32_t tile) const
    {
        const uint32_t rest = tile / q.m_tiles;
        return {tile, rest / q.n_tiles, rest % q.n_tiles, tile % q.m_tiles * (int64_t)TILE_M, p.m};
    }

    __device__ int64_t k(const sm120_batch_tile &) const { return p.k; }
    __device__ int token_sf_step(const sm120_batch_tile &) const { return sf_next_four(p.a); }
    __device__ const nk_row_scale &row_scale(const sm120_batch_tile &) const { return p.row_scale; }

    __device__ sm120_row token(const sm120_batch_tile &tile, int i) const
    {
        const int64_t row = min(tile.token + i, p.m - 1);
        return sm120_row_at(p.a, tile.l, row, row, p.k);
    }

    /* In place of a row beyond N the last row is read; its sums are not stored. */
    __device__ sm120_row weight_of(const nk_operand &b, const sm120_batch_tile &tile, int feature) const
    {
        const int64_t row = min(tile.n_tile * (int64_t)FEATURES + feature, p.n - 1);
        return sm120_row_at(b, tile.l, row, row, p.k);
    }

    __device__ int64_t row_scale_at(const sm120_batch_tile &tile, int64_t token) const
    {
        return tile.l * p.row_scale.batch_stride + token * p.row_scale.stride;
    }

    template <typename STAGED, typename EPILOGUE>
    __device__ void store_by(const EPILOGUE &epilogue, const STAGED &staged, const sm120_batch_tile &tile) const
    {
        const tile_out out = {tile.l, tile.token, p.m, tile.n_tile * (int64_t)FEATURES, p.n, &p.d};
        store_tile<FEATURES, SM120_GEMM_THREADS(WARPS_M)>(staged, out, epilogue);
    }
};

/* ---------------------------------------------------------------------------------------------------------------- */
/* grouped_gemm and grouped_dual_gemm                                                                               */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The same for tiles of groups or experts. */
template <int TILE_M, int WARPS_M, int FEATURES>
struct sm120_group_operator : group_tiles<TILE_M, FEATURES, 4 * WARPS_M> {
    __device__ sm120_group_operator(const cuda_groups &q) : group_tiles<TILE_M, FEATURES, 4 * WARPS_M>(q, sm120_smem) {}

    __device__ int64_t k(const group_tile &tile) const { return this->problem_of(tile).k; }
    __device__ int token_sf_step(const group_tile &tile) const { return sf_next_four(this->problem_of(tile).a); }
    __device__ int weight_sf_step(const group_tile &tile) const { return sf_next_four(this->problem_of(tile).b); }
    __device__ const nk_row_scale &row_scale(const group_tile &tile) const { return this->problem_of(tile).row_scale; }

    /* The token that a row of the result is made of. */
    __device__ int64_t token_of(int64_t row) const
    {
        const nk_token_rows &rows = this->q.rows;
        return rows.data ? nk_token_of(rows.data[row], rows.per_token, rows.tokens) : row;
    }

    __device__ sm120_row token(const group_tile &tile, int i) const
    {
        const nk_gemm_problem &p = this->problem_of(tile);
        const int64_t row = token_of(min(tile.token + i, tile.end - 1));
        return sm120_row_at(p.a, 0, row, p.a.sf_layout == NK_SF_BLOCKED ? row + tile.sf_row : row, p.k);
    }

    __device__ int64_t row_scale_at(const group_tile &tile, int64_t row) const
    {
        return token_of(row) * this->problem_of(tile).row_scale.stride;
    }

    template <typename STAGED, typename EPILOGUE>
    __device__ void store_by(const EPILOGUE &epilogue, const STAGED &staged, const nk_gemm_problem &p,
                             const group_tile &tile) const
    {
        const tile_out out = {0, tile.token, tile.end, tile.n_tile * FEATURES, p.n, &p.d};
        store_tile<FEATURES, SM120_GEMM_THREADS(WARPS_M)>(staged, out, epilogue);
    }
};

/* ---------------------------------------------------------------------------------------------------------------- */
/* Kernels. An operator's file defines their PARAMETERS and the OPERATOR(TILE_M, WARPS_M) that it makes of them.    */
/* ---------------------------------------------------------------------------------------------------------------- */

#define SM120_GEMM_KERNEL(op, name, TILE_M, WARPS_M, STAGES, CTAS)                                                  \
    extern "C" __global__ void __launch_bounds__(SM120_GEMM_THREADS(WARPS_M), CTAS) sm120_##op##_##name(PARAMETERS) \
    {                                                                                                               \
        griddepcontrol_launch_dependents();                                                                         \
        griddepcontrol_wait();                                                                                      \
        sm120_multiply<TILE_M, WARPS_M, STAGES>(OPERATOR(TILE_M, WARPS_M));                                         \
    }

#endif
