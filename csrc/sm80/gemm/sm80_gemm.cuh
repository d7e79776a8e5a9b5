/* The kernels that gemm, dual_gemm, grouped_gemm and grouped_dual_gemm share: the GEMM of the tiles that stream-K gives
 * a CTA (cuda/stream_k.cuh), and the reduction, which adds the partial sums of split tiles.
 *
 * A tile is WARPS * 32 weight rows x TILE_M tokens. An OPERATOR says what an operator does with it:
 * - scheduler: the iterations of all tiles.
 * - tile_of(iter): the tile that has an iteration: .first_iter, .iters, .found, and what these functions need.
 * - k(tile), k_steps(tile): K, and its steps.
 * - point_rows(tile, w), point_tokens(tile, x): this lane's weight rows and rows of tokens.
 * - partials(): the workspace.
 * - scale(staged, tile, i): multiplies the staged sums of the tile's tokens from i on by row_scale.
 * - store(staged, tile, i): their epilogue.
 *
 * Roles: all warps alike, see sm80_mainloop.cuh.
 *
 * Barriers, all of the CTA (__syncthreads):
 *   thread 0 -> all                                        current_tile, by the main loop's barriers
 *   the threads that hold sums -> the threads that store   once a tile's sums are staged
 *   the threads that store -> the next tile's copies       between a CTA's tiles
 *
 * Shared memory: gemm_tile_memory, and current_tile. The host cannot see a template, so it computes the size of
 * gemm_tile_memory as SM80_GEMM_SMEM; a static_assert ties the two in every kernel. current_tile is static and comes on
 * top. */
#ifndef NK_SM80_GEMM_CUH
#define NK_SM80_GEMM_CUH

#include "cuda/ptx/grid.cuh"
#include "cuda/stream_k.cuh"
#include "sm80_gemm_params.h"
#include "sm80_tile.cuh"

/* Behind the static part. Unaligned, what a warp copies would lie in two lines of the banks. */
extern __shared__ __align__(128) uint4 smem[];

#define WHOLE UINT32_MAX /* the CTA has all iterations of the tile: there are no partial sums */

/* What the epilogue needs of a tile. It waits in shared memory while the tile is multiplied: the main loop needs all
 * registers. */
template <typename TILE> struct current_tile {
    TILE tile;
    uint32_t partials; /* WHOLE, or the number of the partial sums in the workspace */
};

/* The sums overwrite the operands. */
template <int TILE_M, int WARPS, int STAGES, int KIND> union gemm_tile_memory {
    operand_memory<TILE_M, WARPS, STAGES, KIND> operands;
    staged_tile<TILE_M, WARPS * 32> sums;
};

/* `iters` iterations of a tile from `first` on. Begins with shared memory free, ends with it in use by the stores. */
template <int TILE_M, int WARPS, int STAGES, int KIND, typename OPERATOR, typename TILE>
__device__ inline void stream_k_gemm_tile(const OPERATOR &op, const TILE &tile, uint32_t first, uint32_t iters)
{
    using S = operand_memory<TILE_M, WARPS, STAGES, KIND>;
    using memory = gemm_tile_memory<TILE_M, WARPS, STAGES, KIND>;
    static_assert(sizeof(memory) == SM80_GEMM_SMEM(TILE_M, WARPS, STAGES, KIND), "what the host asks for");
    constexpr int TILES = TILE_M / 8, THREADS = WARPS * 32;
    auto &s = *(memory *)smem;
    const bool whole = iters == tile.iters;
    weight_rows w;
    token_rows<S::TILES_PER_WARP> x;
    op.point_rows(tile, w);
    op.point_tokens(tile, x);
    __shared__ current_tile<TILE> kept;
    static_assert(sizeof kept <= SM80_GEMM_STATIC_BYTES, "what the host counts on");
    if (threadIdx.x == 0) kept = {tile, whole ? WHOLE : partials_number(blockIdx.x, first == 0)};

    float acc[2][TILES][4] = {};
    gemm_mainloop(s.operands, w, x, (int)(op.k(tile) / NK_SF_VEC), (int)first, (int)(whole ? op.k_steps(tile) : iters),
                  acc);

    const current_tile<TILE> current = kept;
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const float *sums = acc[j][i];
            const float4 v = make_float4(sums[0], sums[1], sums[2], sums[3]) * product_scale<KIND>();
            if (current.partials == WHOLE)
                stage_quad(s.sums, i, j, v);
            else
                *partials_at(op.partials(), current.partials, 2 * TILES, j * TILES + i, THREADS) = v;
        }
    }
    if (current.partials != WHOLE) return;
    __syncthreads();
    op.scale(s.sums, current.tile, 0);
    op.store(s.sums, current.tile, 0);
}

template <int TILE_M, int WARPS, int STAGES, int KIND, typename OPERATOR>
__device__ inline void stream_k_gemm(const OPERATOR &op)
{
    stream_k_for_each_tile(op, [&](const auto &tile, uint32_t first, uint32_t iters) {
        stream_k_gemm_tile<TILE_M, WARPS, STAGES, KIND>(op, tile, first, iters);
    });
}

/* One CTA for each boundary between two CTAs of the GEMM and each n8 tile of tokens. */
template <int TILE_M, int WARPS, typename OPERATOR> __device__ inline void reduce_tile(const OPERATOR &op)
{
    constexpr int TILES = TILE_M / 8, THREADS = WARPS * 32;
    __shared__ __align__(16) staged_tile<8, THREADS> staged; /* read four at a time */
    const uint32_t cta = blockIdx.x / TILES + 1, n8 = blockIdx.x % TILES, per_cta = op.scheduler.iters_per_cta;
    if (cta * per_cta >= op.scheduler.iters) return;
    const auto tile = op.tile_of(cta * per_cta);
    split_tile split;
    if (!tile.found || !is_split_at(cta, per_cta, tile.first_iter, tile.iters, split)) return;
#pragma unroll
    for (int j = 0; j < 2; j++)
        stage_quad(staged, 0, j, sum_partials(op.partials(), split, 2 * TILES, j * TILES + n8, THREADS));
    __syncthreads();
    op.scale(staged, tile, n8 * 8);
    op.store(staged, tile, n8 * 8);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* gemm and dual_gemm                                                                                               */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A tile of a batch. */
typedef struct batch_tile {
    static constexpr bool found = true;
    uint32_t first_iter, iters; /* see cuda/stream_k.cuh */
    uint32_t l, n_tile, m_tile; /* its batch, its numbers along N and M */
} batch_tile;

/* All of an OPERATOR but its weight rows and its epilogue. Tiles of the same weights are neighbours, so that they find
 * them in L2. */
template <typename PROBLEM, int TILE_M, int WARPS, int TILE_N> struct batch_operator {
    const PROBLEM &p;
    const sm80_gemm_scheduler &q;
    stream_k scheduler;

    __device__ batch_operator(const PROBLEM &p, const sm80_gemm_scheduler &q)
        : p(p), q(q), scheduler{q.tiles * q.iters_per_tile, q.iters_per_cta}
    {
    }

    __device__ batch_tile tile_of(uint32_t iter) const
    {
        const uint32_t tile = iter / q.iters_per_tile, rest = tile / q.m_tiles;
        return {tile * q.iters_per_tile, q.iters_per_tile, rest / q.n_tiles, rest % q.n_tiles, tile % q.m_tiles};
    }

    __device__ int64_t k(const batch_tile &) const { return p.k; }
    __device__ uint32_t k_steps(const batch_tile &) const { return q.k_steps; }
    __device__ float *partials() const { return q.partials; }

    template <int TILES_PER_WARP>
    __device__ void point_tokens(const batch_tile &tile, token_rows<TILES_PER_WARP> &x) const
    {
        ::point_tokens(p.a, tile.l, tile.m_tile * (int64_t)TILE_M, p.m, 0, p.k, threadIdx.x >> 5, WARPS, {}, x);
    }

    template <int STAGED>
    __device__ void scale(staged_tile<STAGED, WARPS * 32> &staged, const batch_tile &tile, int first) const
    {
        scale_tokens(staged, p.row_scale, tile.l, tile.m_tile * (int64_t)TILE_M + first, p.m, {});
    }

    template <int STAGED, typename EPILOGUE>
    __device__ void store_by(const EPILOGUE &epilogue, const staged_tile<STAGED, WARPS * 32> &staged,
                             const batch_tile &tile, int first) const
    {
        const int64_t token = tile.m_tile * (int64_t)TILE_M + first;
        const tile_out out = {tile.l, token, p.m, tile.n_tile * (int64_t)TILE_N, p.n, &p.d};
        store_tile<TILE_N, WARPS * 32>(staged, out, epilogue);
    }
};

/* ---------------------------------------------------------------------------------------------------------------- */
/* Kernels. An operator's file defines their PARAMETERS and the OPERATOR(TILE_M, WARPS) that it makes of them.      */
/* ---------------------------------------------------------------------------------------------------------------- */

#define SM80_GEMM_KERNEL(kernel, TILE_M, WARPS, STAGES, CTAS, KIND)                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, CTAS) kernel(PARAMETERS) \
    {                                                                                 \
        griddepcontrol_launch_dependents();                                           \
        stream_k_gemm<TILE_M, WARPS, STAGES, KIND>(OPERATOR(TILE_M, WARPS));          \
    }

/* A tile's kernels for NVFP4 weights. */
#define SM80_GEMM_FP4_KERNELS(op, name, TILE_M, WARPS, STAGES, CTAS)                    \
    SM80_GEMM_KERNEL(op##_##name##_nvfp4, TILE_M, WARPS, STAGES, CTAS, SM80_GEMM_NVFP4) \
    SM80_GEMM_KERNEL(op##_##name##_fp16, TILE_M, WARPS, STAGES, CTAS, SM80_GEMM_FP16)   \
    SM80_GEMM_KERNEL(op##_##name##_bf16, TILE_M, WARPS, STAGES, CTAS, SM80_GEMM_BF16)

/* And the reduction. */
#define SM80_STREAM_K_KERNELS(op, name, TILE_M, WARPS, STAGES, CTAS)                          \
    SM80_GEMM_FP4_KERNELS(op, name, TILE_M, WARPS, STAGES, CTAS)                              \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) op##_##name##_reduce(PARAMETERS) \
    {                                                                                         \
        griddepcontrol_wait();                                                                \
        reduce_tile<TILE_M, WARPS>(OPERATOR(TILE_M, WARPS));                                  \
    }

#endif
