/* A tile of 128 weight rows x TILE_M tokens, for the kernels of all operators and types of tokens.
 *
 * An OPERATOR (sm120_operators.cuh) says what an operator does with it:
 * - scheduler, tile_of(iter): the tiles, see cuda/stream_k.cuh; a tile is one iteration, or its part. A tile has .token
 *   and .end.
 * - tokens(tile): the operand that they are. k(tile): K, of this CTA's part.
 * - weight(tile, i), token(tile, i): where row i of either begins; weight_sf_step, token_sf_step: from four scale
 *   factors of a row to the next four.
 * - DIVIDES: K of a tile among CTAs. If so, completes(tile, sums): whether this one stores it; `sums` then are of all.
 * - row_scale(tile): its factors of tokens, and which of them a token has, row_scale_at(tile, token).
 * - store(staged, tile): the epilogue.
 *
 * C, a family's traits, say how it is multiplied:
 * - TILE_M, WARPS_M, STAGES; STEP: elements of K; SMEM: what the host asks for.
 * - stage: a step's operands in shared memory.
 * - source: what a thread copies of a tile. point(op, tile), fetch(stage, step), k.
 * - sums: a warp's, of 32 weight rows: acc[m16 tile][n8 tile][4]. Its rows are r, r + 32, r + 64, r + 96 for eight r
 *   in a row, one for each g. Rows g and g + 8 of m16 tile 0 are r and r + 32; of tile 1, r + 64 and r + 96.
 * - multiply(source, stage, quads, first_token, sums): a step; finish(sums), behind the last.
 *
 * Roles: all warps alike.
 *
 * Barriers, all of the CTA (__syncthreads):
 *   at each step: what all threads copied for it -> all warps, which multiply it
 *                 all warps, which multiplied the step before -> the copies into its stage
 *   the warps that multiply -> the warps that stage sums   behind the main loop: sums overwrite the stages
 *   the threads that hold sums -> the threads that store   once a tile's sums are staged
 *   the threads that store -> the next tile's copies       between a CTA's tiles */
#ifndef NK_SM120_TILE_CUH
#define NK_SM120_TILE_CUH

#include "cuda/ptx/grid.cuh"
#include "sm120_operators.cuh"

template <class C> union sm120_memory {
    typename C::stage stages[C::STAGES];
    staged_tile<C::TILE_M, SM120_GEMM_TILE_N> sums;
};

/* All steps of a tile, or of a part of one. Ends when no thread reads a stage any more. */
template <class C, typename OPERATOR, typename TILE>
__device__ inline void sm120_mainloop(const OPERATOR &op, const TILE &tile, typename C::stage (&stages)[C::STAGES],
                                      int quads, int first_token, typename C::sums &sums)
{
    constexpr int STAGES = C::STAGES;
    typename C::source source;
    source.point(op, tile);
    const int steps = (int)nk_ceil_div(source.k, C::STEP);
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
        C::multiply(source, stages[stage], quads, first_token, sums);
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    __syncthreads();
}

template <class C, typename OPERATOR, typename TILE>
__device__ inline void sm120_multiply_tile(const OPERATOR &op, const TILE &tile)
{
    static_assert(sizeof(sm120_memory<C>) == C::SMEM, "what the host asks for");
    constexpr int TOKENS = C::TILE_M / C::WARPS_M, TILES = TOKENS / 8;
    auto &s = *(sm120_memory<C> *)sm120_smem;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, quads = warp % 4 * 8, first_token = warp / 4 * TOKENS;
    typename C::sums sums = {};
    sm120_mainloop<C>(op, tile, s.stages, quads, first_token, sums);
    C::finish(sums);
    if constexpr (OPERATOR::DIVIDES)
        if (!op.completes(tile, sums)) return;
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

template <class C, typename OPERATOR> __device__ inline void sm120_multiply(const OPERATOR &op)
{
    stream_k_for_each_tile(op, [&](const auto &tile, uint32_t, uint32_t) { sm120_multiply_tile<C>(op, tile); });
}

/* A kernel of a tile: OP is an operator's name in capitals, TRAITS a family's. */
#define SM120_KERNEL(kernel, OP, TRAITS, TILE_M, WARPS_M, STAGES, CTAS)                                             \
    extern "C" __global__ void __launch_bounds__(SM120_GEMM_THREADS(WARPS_M), CTAS) kernel(SM120_##OP##_PARAMETERS) \
    {                                                                                                               \
        griddepcontrol_launch_dependents();                                                                         \
        griddepcontrol_wait();                                                                                      \
        sm120_multiply<TRAITS<TILE_M, WARPS_M, STAGES>>(SM120_##OP##_OPERATOR(TILE_M, WARPS_M));                    \
    }

#endif
