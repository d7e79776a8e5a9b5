/* D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k]) * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k]))
 *
 * The gemm's main loop, whose m16 tiles are half of B1 and half of B2: a CTA makes WARPS * 16 features (n) of TOKENS
 * tokens (m), and a thread ends with gate and up of the same features and tokens, so the activation needs no exchange.
 * Split sums of both go to the workspace and a second kernel adds them in order, as in gemm.
 *
 * Roles, synchronisation, memory map: sm80_mainloop.cuh. */
#include "sm80_activation.cuh"
#include "sm80_gemm_params.h"
#include "sm80_tile.cuh"

extern __shared__ uint4 smem[];

/* This lane's features in tile `nt` are this one and the 32nd after it: two of an SF atom's four row quarters. */
template <int WARPS> __device__ inline int64_t first_feature(int64_t nt)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    return (nt * (WARPS / 4) + warp / 4) * (NK_SF_ATOM_ROWS / 2) + warp % 4 * 8 + lane / 4;
}

/* v: gate of this lane's feature `slot` (of two) for tokens 2 (lane % 4) and the next of n8 tile `tile`, then up. */
template <int ROWS>
__device__ inline void stage_features(const nk_dual_gemm_problem &p, float *stage, int tile, int slot, int64_t n,
                                      float4 v)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int row = warp / 4 * (NK_SF_ATOM_ROWS / 2) + warp % 4 * 8 + lane / 4 + 32 * slot;
    const int64_t present = at_most(n, p.n - 1);
    const float alpha1 = alpha_at(p.alpha1, present), alpha2 = alpha_at(p.alpha2, present);
    float *at = stage + (tile * 8 + lane % 4 * 2) * SM80_OUT_PITCH(ROWS) + row;
    at[0] = __fmul_rn(activate(p.activation, __fmul_rn(alpha1, v.x)), __fmul_rn(alpha2, v.z));
    at[SM80_OUT_PITCH(ROWS)] = __fmul_rn(activate(p.activation, __fmul_rn(alpha1, v.y)), __fmul_rn(alpha2, v.w));
}

template <int TOKENS, int WARPS, int STAGES, int KIND>
__device__ inline void dual_gemm(const nk_dual_gemm_problem &p, const sm80_gemm_params &q)
{
    using S = smem_t<TOKENS, WARPS, STAGES, KIND>;
    constexpr int TILES = TOKENS / 8, ROWS = WARPS * 16, THREADS = WARPS * 32;
    S &s = *(S *)smem;
    const split_place at = split_place_of(q);
    const int64_t l = at.l, feature = first_feature<WARPS>(at.nt), token = at.mt * (int64_t)TOKENS;
    weight_rows w;
    token_rows_t<S::ITEMS> x;
    point_pair(p.b1, l, feature, p.n, p.k, 0, w);
    point_pair(p.b2, l, feature, p.n, p.k, 1, w);
    w.adjacent = false;
    point_tokens(p.a, l, token, p.m, 0, p.k, threadIdx.x >> 5, WARPS, x);

    float acc[2][TILES][4] = {};
    const int first = at.split * q.steps_per_split, steps = min(q.steps - first, q.steps_per_split);
    accumulate(s, w, x, (int)(p.k / NK_SF_VEC), first, steps, acc);

#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const float4 v = scaled(acc[j][tile], product_unit<KIND>());
            if (q.splits == 1)
                stage_features<ROWS>(p, (float *)smem, tile, j, feature + 32 * j, v);
            else
                *partial_at(q.partials, at.split_tile, 2 * TILES, j * TILES + tile, THREADS) = v;
        }
    }
    if (q.splits > 1) return;
    const tile_out out = {l, token, p.m, at.nt * (int64_t)ROWS, p.n, &p.d, NULL, NULL};
    store_tile<TOKENS, ROWS, THREADS>((float *)smem, out);
}

/* One CTA for each eight tokens of a tile. */
template <int TOKENS, int WARPS> __device__ inline void reduce(const nk_dual_gemm_problem &p, const sm80_gemm_params &q)
{
    constexpr int TILES = TOKENS / 8, ROWS = WARPS * 16, THREADS = WARPS * 32;
    __shared__ float stage[8 * SM80_OUT_PITCH(ROWS)];
    const int tile = blockIdx.x % TILES;
    const uint32_t index = blockIdx.x / TILES, mt = index % q.m_tiles, rest = index / q.m_tiles;
    const int64_t nt = rest % q.n_tiles, l = rest / q.n_tiles;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float4 v = reduce_partials(q.partials, index, q.splits, 2 * TILES, j * TILES + tile, THREADS);
        stage_features<ROWS>(p, stage, 0, j, first_feature<WARPS>(nt) + 32 * j, v);
    }
    const tile_out out = {l, mt * (int64_t)TOKENS + tile * 8, p.m, nt * ROWS, p.n, &p.d, NULL, NULL};
    store_tile<8, ROWS, THREADS>(stage, out);
}

#define DUAL_GEMM(name, kind, TOKENS, WARPS, STAGES, CTAS, KIND)                                    \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, CTAS) sm80_dual_gemm_##name##_##kind(  \
        const __grid_constant__ nk_dual_gemm_problem p, const __grid_constant__ sm80_gemm_params q) \
    {                                                                                               \
        dual_gemm<TOKENS, WARPS, STAGES, KIND>(p, q);                                               \
    }

#define KERNELS(name, TOKENS, WARPS, STAGES, CTAS)                                                  \
    DUAL_GEMM(name, codes, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_CODES)                            \
    DUAL_GEMM(name, halves, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_HALVES)                          \
    DUAL_GEMM(name, bfloats, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_BFLOATS)                        \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) sm80_dual_gemm_##name##_reduce(        \
        const __grid_constant__ nk_dual_gemm_problem p, const __grid_constant__ sm80_gemm_params q) \
    {                                                                                               \
        reduce<TOKENS, WARPS>(p, q);                                                                \
    }

SM80_GEMM_TILES(KERNELS)
