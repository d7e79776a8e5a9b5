/* The kernels that gemm, dual_gemm and grouped_gemm share: one multiplies a CTA's tiles, or parts of them; the other
 * adds the parts of split tiles (cuda/split.cuh).
 *
 * A tile is WARPS * 32 weight rows x TOKENS tokens. A PRODUCT says what an operator does with it:
 *   all                      the deal of all tiles' units
 *   tile_of(unit)            the tile that has a unit: .begin, .units, .found, and what the functions below need
 *   k(tile), steps(tile)     K, and its steps
 *   point_rows(tile, w)      this lane's weight rows
 *   point_tokens(tile, x)    this lane's rows of tokens
 *   partials()               the workspace
 *   store(staged, tile, i)   the epilogue of the tile's tokens from i on, whose sums are staged
 *
 * Roles: all warps alike, see sm80_mainloop.cuh.
 *
 * Barriers, all of the CTA (__syncthreads):
 *   thread 0 -> all                                    current_tile, by the main loop's barriers
 *   the threads that hold sums -> those that store     once a tile's sums are staged
 *   those that store -> the next tile's copies         between a CTA's tiles
 *
 * Shared memory: tile_memory, and current_tile. The host cannot see a template, so it computes the size of tile_memory
 * as SM80_GEMM_SMEM; a static_assert ties the two in every kernel. current_tile is static and comes on top. */
#ifndef NK_SM80_PRODUCT_CUH
#define NK_SM80_PRODUCT_CUH

#include "cuda/ptx/grid.cuh"
#include "cuda/split.cuh"
#include "sm80_gemm_params.h"
#include "sm80_tile.cuh"

/* It begins behind the static part. Unaligned, what a warp copies would lie in two lines of the banks. */
extern __shared__ __align__(128) uint4 smem[];

#define WHOLE UINT32_MAX /* no part of a tile, but all of it */

/* What the epilogue needs of a tile. It waits in shared memory while the tile is multiplied: the main loop needs all
 * registers. */
template <typename TILE> struct current_tile {
    TILE tile;
    uint32_t part; /* WHOLE, or which part of the workspace */
};

/* The sums take the place of the operands. */
template <int TOKENS, int WARPS, int STAGES, int KIND> union tile_memory {
    smem_t<TOKENS, WARPS, STAGES, KIND> operands;
    staged_tile<TOKENS, WARPS * 32> sums;
};

/* `units` of a tile from `first` on. Begins with shared memory free, ends with it in use by the stores. */
template <int TOKENS, int WARPS, int STAGES, int KIND, typename PRODUCT, typename TILE>
__device__ inline void multiply_tile(const PRODUCT &product, const TILE &tile, uint32_t first, uint32_t units)
{
    using S = smem_t<TOKENS, WARPS, STAGES, KIND>;
    using memory = tile_memory<TOKENS, WARPS, STAGES, KIND>;
    static_assert(sizeof(memory) == SM80_GEMM_SMEM(TOKENS, WARPS, STAGES, KIND), "what the host asks for");
    constexpr int TILES = TOKENS / 8, THREADS = WARPS * 32;
    auto &s = *(memory *)smem;
    const bool whole = units == tile.units;
    weight_rows w;
    token_rows_t<S::TILES_PER_WARP> x;
    product.point_rows(tile, w);
    product.point_tokens(tile, x);
    __shared__ current_tile<TILE> kept;
    static_assert(sizeof kept <= SM80_GEMM_STATIC_BYTES, "what the host counts on");
    if (threadIdx.x == 0) kept = {tile, whole ? WHOLE : part_of(blockIdx.x, first == 0)};

    float acc[2][TILES][4] = {};
    accumulate(s.operands, w, x, (int)(product.k(tile) / NK_SF_VEC), (int)first,
               (int)(whole ? product.steps(tile) : units), acc);

    const current_tile<TILE> current = kept;
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const float *sums = acc[j][i];
            const float4 v = make_float4(sums[0], sums[1], sums[2], sums[3]) * product_scale<KIND>();
            if (current.part == WHOLE)
                stage_quad(s.sums, i, j, v);
            else
                *partial_at(product.partials(), current.part, 2 * TILES, j * TILES + i, THREADS) = v;
        }
    }
    if (current.part != WHOLE) return;
    __syncthreads();
    product.store(s.sums, current.tile, 0);
}

template <int TOKENS, int WARPS, int STAGES, int KIND, typename PRODUCT>
__device__ inline void multiply_tiles(const PRODUCT &product)
{
    each_part(product, [&](const auto &tile, uint32_t first, uint32_t units) {
        multiply_tile<TOKENS, WARPS, STAGES, KIND>(product, tile, first, units);
    });
}

/* One CTA for each boundary between two of the other kernel's CTAs and each eight tokens. */
template <int TOKENS, int WARPS, typename PRODUCT> __device__ inline void reduce_tile(const PRODUCT &product)
{
    constexpr int TILES = TOKENS / 8, THREADS = WARPS * 32;
    __shared__ __align__(16) staged_tile<8, THREADS> staged; /* read four at a time */
    const uint32_t cta = blockIdx.x / TILES + 1, eight = blockIdx.x % TILES, per_cta = product.all.units_per_cta;
    if (cta * per_cta >= product.all.units) return;
    const auto tile = product.tile_of(cta * per_cta);
    split_tile parts;
    if (!tile.found || !is_split_at(cta, per_cta, tile.begin, tile.units, parts)) return;
#pragma unroll
    for (int j = 0; j < 2; j++)
        stage_quad(staged, 0, j, sum_parts(product.partials(), parts, 2 * TILES, j * TILES + eight, THREADS));
    __syncthreads();
    product.store(staged, tile, eight * 8);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* gemm and dual_gemm                                                                                               */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A tile of a batch. */
typedef struct batch_tile {
    static constexpr bool found = true;
    uint32_t begin, units;      /* its first unit of all; how many it has */
    uint32_t l, n_tile, m_tile; /* its batch, its numbers along N and M */
} batch_tile;

/* All of a PRODUCT but its weight rows and its epilogue. Tiles of the same weights are neighbours, so that they find
 * them in L2. */
template <typename PROBLEM, int TOKENS, int WARPS, int FEATURES> struct batch_product {
    const PROBLEM &p;
    const sm80_gemm_params &q;
    deal all;

    __device__ batch_product(const PROBLEM &p, const sm80_gemm_params &q)
        : p(p), q(q), all{q.tiles * q.units, q.units_per_cta}
    {
    }

    __device__ batch_tile tile_of(uint32_t unit) const
    {
        const uint32_t tile = unit / q.units, rest = tile / q.m_tiles;
        return {tile * q.units, q.units, rest / q.n_tiles, rest % q.n_tiles, tile % q.m_tiles};
    }

    __device__ int64_t k(const batch_tile &) const { return p.k; }
    __device__ uint32_t steps(const batch_tile &) const { return q.steps; }
    __device__ float *partials() const { return q.partials; }

    template <int TILES_PER_WARP>
    __device__ void point_tokens(const batch_tile &tile, token_rows_t<TILES_PER_WARP> &x) const
    {
        ::point_tokens(p.a, tile.l, tile.m_tile * (int64_t)TOKENS, p.m, 0, p.k, threadIdx.x >> 5, WARPS, {}, x);
    }

    template <int STAGED, typename EPILOGUE>
    __device__ void store_by(const EPILOGUE &epilogue, const staged_tile<STAGED, WARPS * 32> &staged,
                             const batch_tile &tile, int first) const
    {
        const int64_t token = tile.m_tile * (int64_t)TOKENS + first;
        const tile_out out = {tile.l, token, p.m, tile.n_tile * (int64_t)FEATURES, p.n, &p.d};
        store_tile<FEATURES, WARPS * 32>(staged, out, epilogue);
    }
};

/* ---------------------------------------------------------------------------------------------------------------- */
/* Kernels. An operator's file defines their PARAMETERS and the PRODUCT(TOKENS, WARPS) that it makes of them.       */
/* ---------------------------------------------------------------------------------------------------------------- */

#define SM80_MULTIPLY(kernel, TOKENS, WARPS, STAGES, CTAS, KIND)                      \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, CTAS) kernel(PARAMETERS) \
    {                                                                                 \
        griddepcontrol_launch_dependents();                                           \
        multiply_tiles<TOKENS, WARPS, STAGES, KIND>(PRODUCT(TOKENS, WARPS));          \
    }

/* A tile's kernels for NVFP4 weights. */
#define SM80_FP4_MULTIPLY(op, name, TOKENS, WARPS, STAGES, CTAS)                       \
    SM80_MULTIPLY(op##_##name##_codes, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_CODES)   \
    SM80_MULTIPLY(op##_##name##_halves, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_HALVES) \
    SM80_MULTIPLY(op##_##name##_bfloats, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_BFLOATS)

/* And the one that adds parts. */
#define SM80_FP4_KERNELS(op, name, TOKENS, WARPS, STAGES, CTAS)                               \
    SM80_FP4_MULTIPLY(op, name, TOKENS, WARPS, STAGES, CTAS)                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) op##_##name##_reduce(PARAMETERS) \
    {                                                                                         \
        griddepcontrol_wait();                                                                \
        reduce_tile<TOKENS, WARPS>(PRODUCT(TOKENS, WARPS));                                   \
    }

#endif
