/* D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k]) * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k]))
 *
 * The gemm's main loop, whose m16 tiles are half of B1 and half of B2: a CTA makes WARPS * 16 features (n) of TOKENS
 * tokens (m). Gate and up of a tile lie side by side in shared memory before they are stored; the activation is
 * applied there, in a loop: unrolled over a thread's sums it was 110 KB of code. Shared tiles are summed by a second
 * kernel, as in gemm.
 *
 * Roles, synchronisation, memory map: sm80_mainloop.cuh. */
#include "sm80_activation.cuh"
#include "sm80_tile.cuh"

extern __shared__ uint4 smem[];

#define UP_AFTER_GATE (NK_SF_ATOM_ROWS / 2) /* sums: a token's are 64 gates, their 64 ups, the next gates, .. */

/* This lane's features in tile `nt` are this one and the 32nd after it: two of an SF atom's four row quarters. */
template <int WARPS> __device__ inline int64_t first_feature(int64_t nt)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    return (nt * (WARPS / 4) + warp / 4) * (NK_SF_ATOM_ROWS / 2) + warp % 4 * 8 + lane / 4;
}

/* Where stage_quad() puts the gate of a tile's feature; its up is UP_AFTER_GATE behind it. */
__device__ inline int staged_at(int feature)
{
    return feature / UP_AFTER_GATE * (2 * UP_AFTER_GATE) + feature % UP_AFTER_GATE;
}

/* act(alpha1[n] * gate) * (alpha2[n] * up). */
struct gated_sums {
    const nk_dual_gemm_problem &p;

    template <int COUNT> struct columns {
        float alpha1[COUNT], alpha2[COUNT];
        nk_activation activation;
        int first;

        __device__ columns(const gated_sums &e, const tile_out &o, int column)
            : activation(e.p.activation), first(staged_at(column))
        {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const int64_t n = at_most(o.row + column + i, o.row_end - 1);
                alpha1[i] = alpha_at(e.p.alpha1, n);
                alpha2[i] = alpha_at(e.p.alpha2, n);
            }
        }

        __device__ void finish(const float *sums, float v[COUNT]) const
        {
            float up[COUNT];
            load_floats<COUNT>(sums + first, v);
            load_floats<COUNT>(sums + first + UP_AFTER_GATE, up);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                v[i] = __fmul_rn(alpha1[i], v[i]);
            activate<COUNT>(activation, v);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                v[i] = __fmul_rn(v[i], __fmul_rn(alpha2[i], up[i]));
        }
    };
};

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
                stage_quad<THREADS>((float *)smem, i, j, v);
            else
                *partial_at(q.partials, part_of(blockIdx.x, first == 0), 2 * TILES, j * TILES + i, THREADS) = v;
        }
    }
    if (!whole) return;
    const tile_out out = {at.l, token, p.m, at.nt * (int64_t)ROWS, p.n, &p.d};
    store_tile<TOKENS, ROWS, THREADS>((float *)smem, out, gated_sums{p});
}

/* One CTA for each boundary between two of the other kernel's and each eight tokens. */
template <int TOKENS, int WARPS> __device__ inline void reduce(const nk_dual_gemm_problem &p, const sm80_gemm_params &q)
{
    constexpr int TILES = TOKENS / 8, ROWS = WARPS * 16, THREADS = WARPS * 32;
    __shared__ __align__(16) float stage[8 * SM80_OUT_PITCH(THREADS)]; /* read four at a time */
    const uint32_t cta = blockIdx.x / TILES + 1, eight = blockIdx.x % TILES, tile = cta * q.share / q.units;
    shared_tile shared;
    if (!is_shared_at(cta, q.share, tile * q.units, q.units, shared)) return;
    const tile_place at = place_of(q, tile);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        stage_quad<THREADS>(stage, 0, j, sum_parts(q.partials, shared, 2 * TILES, j * TILES + eight, THREADS));
    }
    const tile_out out = {at.l, at.mt * (int64_t)TOKENS + eight * 8, p.m, at.nt * (int64_t)ROWS, p.n, &p.d};
    store_tile<8, ROWS, THREADS>(stage, out, gated_sums{p});
}

#define DUAL_GEMM(name, kind, TOKENS, WARPS, STAGES, CTAS, KIND)                                    \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, CTAS) sm80_dual_gemm_##name##_##kind(  \
        const __grid_constant__ nk_dual_gemm_problem p, const __grid_constant__ sm80_gemm_params q) \
    {                                                                                               \
        griddepcontrol_launch_dependents();                                                         \
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
        griddepcontrol_wait();                                                                      \
        reduce<TOKENS, WARPS>(p, q);                                                                \
    }

SM80_GEMM_TILES(KERNELS)
