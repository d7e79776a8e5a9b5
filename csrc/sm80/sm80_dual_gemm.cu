/* D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k]) * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k]))
 *
 * The gemm's main loop, whose m16 tiles are half of B1 and half of B2: a CTA makes WARPS * 16 features (n) of TOKENS
 * tokens (m), and a thread ends with gate and up of the same features and tokens, so the activation needs no exchange.
 * Shared tiles are summed by a second kernel, as in gemm.
 *
 * Roles, synchronisation, memory map: sm80_mainloop.cuh. */
#include "sm80_activation.cuh"
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

/* `units` of a tile from `first` on. Begins with shared memory free, ends with it in use by the stores. */
template <int TOKENS, int WARPS, int STAGES, int KIND>
__device__ inline void multiply_tile(const nk_dual_gemm_problem &p, const sm80_gemm_params &q, uint32_t tile,
                                     uint32_t first, uint32_t units)
{
    using S = smem_t<TOKENS, WARPS, STAGES, KIND>;
    constexpr int TILES = TOKENS / 8, ROWS = WARPS * 16, THREADS = WARPS * 32;
    S &s = *(S *)smem;
    const tile_place at = place_of(q, tile);
    const int64_t feature = first_feature<WARPS>(at.nt), token = at.mt * (int64_t)TOKENS;
    weight_rows w;
    token_rows_t<S::ITEMS> x;
    point_pair(p.b1, at.l, feature, p.n, p.k, 0, w);
    point_pair(p.b2, at.l, feature, p.n, p.k, 1, w);
    w.adjacent = false;
    point_tokens(p.a, at.l, token, p.m, 0, p.k, threadIdx.x >> 5, WARPS, x);

    const bool whole = units == q.units;
    float acc[2][TILES][4] = {};
    accumulate(s, w, x, (int)(p.k / NK_SF_VEC), (int)first, (int)(whole ? q.steps : units), acc);

#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const float4 v = scaled(acc[j][i], product_unit<KIND>());
            if (whole)
                stage_features<ROWS>(p, (float *)smem, i, j, first_feature<WARPS>(at.nt) + 32 * j, v);
            else
                *partial_at(q.partials, part_of(blockIdx.x, first == 0), 2 * TILES, j * TILES + i, THREADS) = v;
        }
    }
    if (!whole) return;
    const tile_out out = {at.l, token, p.m, at.nt * (int64_t)ROWS, p.n, &p.d, NULL, NULL};
    store_tile<TOKENS, ROWS, THREADS>((float *)smem, out);
}

/* One CTA for each boundary between two of the other kernel's and each eight tokens. */
template <int TOKENS, int WARPS> __device__ inline void reduce(const nk_dual_gemm_problem &p, const sm80_gemm_params &q)
{
    constexpr int TILES = TOKENS / 8, ROWS = WARPS * 16, THREADS = WARPS * 32;
    __shared__ __align__(16) float stage[8 * SM80_OUT_PITCH(ROWS)]; /* read four at a time */
    const uint32_t cta = blockIdx.x / TILES + 1, eight = blockIdx.x % TILES, tile = cta * q.share / q.units;
    shared_tile shared;
    if (!is_shared_at(cta, q.share, tile * q.units, q.units, shared)) return;
    const tile_place at = place_of(q, tile);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float4 v = sum_parts(q.partials, shared, 2 * TILES, j * TILES + eight, THREADS);
        stage_features<ROWS>(p, stage, 0, j, first_feature<WARPS>(at.nt) + 32 * j, v);
    }
    const tile_out out = {at.l, at.mt * (int64_t)TOKENS + eight * 8, p.m, at.nt * (int64_t)ROWS, p.n, &p.d, NULL, NULL};
    store_tile<8, ROWS, THREADS>(stage, out);
}

#define DUAL_GEMM(name, kind, TOKENS, WARPS, STAGES, CTAS, KIND)                                    \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, CTAS) sm80_dual_gemm_##name##_##kind(  \
        const __grid_constant__ nk_dual_gemm_problem p, const __grid_constant__ sm80_gemm_params q) \
    {                                                                                               \
        each_part(q, [&](uint32_t tile, uint32_t first, uint32_t units) {                           \
            multiply_tile<TOKENS, WARPS, STAGES, KIND>(p, q, tile, first, units);                   \
        });                                                                                         \
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
