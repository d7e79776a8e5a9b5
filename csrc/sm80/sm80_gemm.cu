/* D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *
 * A CTA makes one tile of WARPS * 32 weight rows (n) x TOKENS tokens (m), over all of K or one of `splits` equal parts
 * of it. Tiles of the same weights are neighbours in the grid: they meet in L2. Split sums go to the workspace as the
 * threads hold them and a second kernel adds them in order: the same bits in every run.
 *
 * Roles, synchronisation, memory map: sm80_mainloop.cuh. */
#include "sm80_gemm_params.h"
#include "sm80_tile.cuh"

extern __shared__ uint4 smem[];

template <int TOKENS, int WARPS, int STAGES, int KIND>
__device__ inline void gemm(const nk_gemm_problem &p, const sm80_gemm_params &q)
{
    constexpr int ITEMS = smem_t<TOKENS, WARPS, STAGES, KIND>::ITEMS, TILES = TOKENS / 8, ROWS = WARPS * 32,
                  THREADS = WARPS * 32;
    auto &s = *(smem_t<TOKENS, WARPS, STAGES, KIND> *)smem;
    static_assert(sizeof s == SM80_GEMM_OPERANDS(TOKENS, WARPS, STAGES, KIND),
                  "the host asks for what the kernel uses");
    const split_place at = split_place_of(q);
    const int64_t row = first_row<WARPS>(at.nt), token = at.mt * (int64_t)TOKENS;
    weight_rows w;
    token_rows_t<ITEMS> x;
    point_weights(p.b, at.l, row, p.n, p.k, w);
    point_tokens(p.a, at.l, token, p.m, 0, p.k, threadIdx.x >> 5, WARPS, x);

    float acc[2][TILES][4] = {};
    const int first = at.split * q.steps_per_split, steps = min(q.steps - first, q.steps_per_split);
    accumulate(s, w, x, (int)(p.k / NK_SF_VEC), first, steps, acc);

#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const float4 v = scaled(acc[j][tile], product_unit<KIND>());
            if (q.splits == 1)
                stage_quad<ROWS>((float *)smem, tile, j, v);
            else
                *partial_at(q.partials, at.split_tile, 2 * TILES, j * TILES + tile, THREADS) = v;
        }
    }
    if (q.splits > 1) return;
    const tile_out out = {at.l, token, p.m, at.nt * (int64_t)ROWS, p.n, &p.d, &p.alpha, &p.bias};
    store_tile<TOKENS, ROWS, THREADS>((float *)smem, out);
}

/* One CTA for each eight tokens of a tile. */
template <int TOKENS, int WARPS> __device__ inline void reduce(const nk_gemm_problem &p, const sm80_gemm_params &q)
{
    constexpr int TILES = TOKENS / 8, ROWS = WARPS * 32, THREADS = WARPS * 32;
    __shared__ float stage[8 * SM80_OUT_PITCH(ROWS)];
    const int tile = blockIdx.x % TILES;
    const uint32_t index = blockIdx.x / TILES, mt = index % q.m_tiles, rest = index / q.m_tiles;
    const int64_t nt = rest % q.n_tiles, l = rest / q.n_tiles;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        stage_quad<ROWS>(stage, 0, j,
                         reduce_partials(q.partials, index, q.splits, 2 * TILES, j * TILES + tile, THREADS));
    }
    const tile_out out = {l, mt * (int64_t)TOKENS + tile * 8, p.m, nt * ROWS, p.n, &p.d, &p.alpha, &p.bias};
    store_tile<8, ROWS, THREADS>(stage, out);
}

#define GEMM(name, kind, TOKENS, WARPS, STAGES, CTAS, KIND)                                    \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, CTAS) sm80_gemm_##name##_##kind(  \
        const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm80_gemm_params q) \
    {                                                                                          \
        gemm<TOKENS, WARPS, STAGES, KIND>(p, q);                                               \
    }

#define KERNELS(name, TOKENS, WARPS, STAGES, CTAS)                                             \
    GEMM(name, codes, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_CODES)                            \
    GEMM(name, halves, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_HALVES)                          \
    GEMM(name, bfloats, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_BFLOATS)                        \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) sm80_gemm_##name##_reduce(        \
        const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm80_gemm_params q) \
    {                                                                                          \
        reduce<TOKENS, WARPS>(p, q);                                                           \
    }

SM80_GEMM_TILES(KERNELS)
