/* D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *
 * A tile is WARPS * 32 weight rows (n) x TOKENS tokens (m). A CTA makes one, or an even share of all tiles' steps of K
 * (sm80_gemm_params.h). Sums of shared tiles go to the workspace as the threads hold them and a second kernel adds them
 * in order: the same bits in every run.
 *
 * Roles, synchronisation, memory map: sm80_mainloop.cuh. */
#include "sm80_tile.cuh"

extern __shared__ uint4 smem[];

/* `units` of a tile from `first` on. Begins with shared memory free, ends with it in use by the stores. */
template <int TOKENS, int WARPS, int STAGES, int KIND>
__device__ inline void multiply_tile(const nk_gemm_problem &p, const sm80_gemm_params &q, uint32_t tile, uint32_t first,
                                     uint32_t units)
{
    using S = smem_t<TOKENS, WARPS, STAGES, KIND>;
    constexpr int TILES = TOKENS / 8, ROWS = WARPS * 32, THREADS = WARPS * 32;
    auto &s = *(S *)smem;
    static_assert(sizeof s == SM80_GEMM_OPERANDS(TOKENS, WARPS, STAGES, KIND),
                  "the host asks for what the kernel uses");
    const tile_place at = place_of(q, tile);
    const int64_t token = at.mt * (int64_t)TOKENS;
    weight_rows w;
    token_rows_t<S::ITEMS> x;
    point_weights(p.b, at.l, first_row<WARPS>(at.nt), p.n, p.k, w);
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
                stage_quad<ROWS>((float *)smem, i, j, v);
            else
                *partial_at(q.partials, part_of(blockIdx.x, first == 0), 2 * TILES, j * TILES + i, THREADS) = v;
        }
    }
    if (!whole) return;
    const tile_out out = {at.l, token, p.m, at.nt * (int64_t)ROWS, p.n, &p.d};
    store_tile<TOKENS, ROWS, THREADS>((float *)smem, out, scaled_sums{p.alpha, p.bias});
}

/* One CTA for each boundary between two of the other kernel's and each eight tokens. */
template <int TOKENS, int WARPS> __device__ inline void reduce(const nk_gemm_problem &p, const sm80_gemm_params &q)
{
    constexpr int TILES = TOKENS / 8, ROWS = WARPS * 32, THREADS = WARPS * 32;
    __shared__ __align__(16) float stage[8 * SM80_OUT_PITCH(ROWS)]; /* read four at a time */
    const uint32_t cta = blockIdx.x / TILES + 1, eight = blockIdx.x % TILES, tile = cta * q.share / q.units;
    shared_tile shared;
    if (!is_shared_at(cta, q.share, tile * q.units, q.units, shared)) return;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        stage_quad<ROWS>(stage, 0, j, sum_parts(q.partials, shared, 2 * TILES, j * TILES + eight, THREADS));
    }
    const tile_place at = place_of(q, tile);
    const tile_out out = {at.l, at.mt * (int64_t)TOKENS + eight * 8, p.m, at.nt * (int64_t)ROWS, p.n, &p.d};
    store_tile<8, ROWS, THREADS>(stage, out, scaled_sums{p.alpha, p.bias});
}

#define GEMM(name, kind, TOKENS, WARPS, STAGES, CTAS, KIND)                                    \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, CTAS) sm80_gemm_##name##_##kind(  \
        const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm80_gemm_params q) \
    {                                                                                          \
        griddepcontrol_launch_dependents();                                                    \
        each_part(q, [&](uint32_t tile, uint32_t first, uint32_t units) {                      \
            multiply_tile<TOKENS, WARPS, STAGES, KIND>(p, q, tile, first, units);              \
        });                                                                                    \
    }

#define KERNELS(name, TOKENS, WARPS, STAGES, CTAS)                                             \
    GEMM(name, codes, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_CODES)                            \
    GEMM(name, halves, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_HALVES)                          \
    GEMM(name, bfloats, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_BFLOATS)                        \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) sm80_gemm_##name##_reduce(        \
        const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm80_gemm_params q) \
    {                                                                                          \
        griddepcontrol_wait();                                                                 \
        reduce<TOKENS, WARPS>(p, q);                                                           \
    }

SM80_GEMM_TILES(KERNELS)
