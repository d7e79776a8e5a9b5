/* D_g[m,n] = convert(alpha_g[n] * sum_k A_g[m,k] B_g[n,k] + bias_g[n]) for every group g
 *
 * A tile is the gemm's: WARPS * 32 weight rows x TOKENS tokens of one group, over all of K or one of `splits` parts of
 * it. List form: tiles are numbered group after group, and those of the same weights are neighbours. Contiguous form:
 * the grid has room for every split of the rows into experts; a CTA finds its expert by a scan of `offsets`, and one
 * that there are no tokens for leaves. Split sums go to the workspace and a second kernel adds them in order.
 *
 * Roles, synchronisation, memory map: sm80_mainloop.cuh. */
#include "sm80_expert.cuh"
#include "sm80_grouped_gemm_params.h"
#include "sm80_tile.cuh"

extern __shared__ uint4 smem[];

typedef struct place {
    int group;          /* of the parameters */
    int64_t expert;     /* contiguous: which weights, alpha and bias */
    int64_t nt;         /* tile of weight rows */
    int64_t token, end; /* the tile's first token; the group's end */
    int64_t sf_row;     /* blocked sfa: a token's row in it, less the token */
} place;

/* The group whose tiles include `tile`. */
__device__ inline int group_of(const sm80_grouped_gemm_params &q, uint32_t tile)
{
    int low = 0, high = q.count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (q.group[middle].first_tile <= tile)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* False where there is nothing to do; the same answer in all threads of the CTA. */
template <int TOKENS, int WARPS>
__device__ inline bool find_place(const sm80_grouped_gemm_params &q, uint32_t tile, place &at)
{
    at = {};
    if (!q.offsets) {
        at.group = group_of(q, tile);
        const nk_gemm_problem &p = q.group[at.group].gemm;
        const uint32_t index = tile - q.group[at.group].first_tile, m_tiles = (uint32_t)nk_ceil_div(p.m, TOKENS);
        at.nt = index / m_tiles;
        at.token = index % m_tiles * (int64_t)TOKENS;
        at.end = p.m;
        return true;
    }
    const nk_gemm_problem &p = q.group[0].gemm;
    auto &scan = *(expert_scan_t<WARPS> *)smem;
    static_assert(sizeof scan <= SM80_EXPERT_SCAN_BYTES, "what the host asks for");
    const expert_tokens found = find_expert<TOKENS>(scan, q.offsets, q.experts, p.m, tile % q.tiles);
    at.expert = found.expert;
    at.nt = tile / q.tiles;
    at.token = found.first;
    at.end = found.end;
    if (!found.found || !p.a.sf || p.a.sf_layout != NK_SF_BLOCKED) return found.found;
    at.sf_row = found.atom_row * NK_SF_ATOM_ROWS - found.begin;
    /* Offsets that nobody has checked may need more factors than there are. */
    const int64_t atom_rows = found.atom_row + nk_ceil_div(found.end - found.begin, NK_SF_ATOM_ROWS);
    return atom_rows * nk_sf_padded_cols(p.k / NK_SF_VEC) * NK_SF_ATOM_ROWS <= q.a_sf_bytes;
}

/* The group's problem as its output sees it. */
__device__ inline nk_gemm_problem output_of(const sm80_grouped_gemm_params &q, const place &at)
{
    nk_gemm_problem p = q.group[at.group].gemm;
    if (p.alpha.data) p.alpha.data += at.expert * p.alpha.group_stride;
    if (p.bias.data) p.bias.data += at.expert * p.bias.group_stride;
    return p;
}

template <int TOKENS, int WARPS, int STAGES, int KIND>
__device__ inline void grouped_gemm(const sm80_grouped_gemm_params &q)
{
    using S = smem_t<TOKENS, WARPS, STAGES, KIND>;
    constexpr int TILES = TOKENS / 8, ROWS = WARPS * 32, THREADS = WARPS * 32;
    S &s = *(S *)smem;
    place at;
    if (!find_place<TOKENS, WARPS>(q, blockIdx.x / q.splits, at)) return;
    float acc[2][TILES][4] = {};
    {
        const nk_gemm_problem &p = q.group[at.group].gemm;
        weight_rows w;
        token_rows_t<S::ITEMS> x;
        point_weights(p.b, at.expert, first_row<WARPS>(at.nt), p.n, p.k, w);
        point_tokens(p.a, 0, at.token, at.end, at.sf_row, p.k, threadIdx.x >> 5, WARPS, x);
        const int all = (int)nk_ceil_div(p.k, SM80_GEMM_STEP(KIND)), part = (all + (int)q.splits - 1) / (int)q.splits;
        const int first = blockIdx.x % q.splits * part, steps = max(0, min(all - first, part));
        accumulate(s, w, x, (int)(p.k / NK_SF_VEC), first, steps, acc);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const float4 v = scaled(acc[j][tile], product_unit<KIND>());
            if (q.splits == 1)
                stage_quad<ROWS>((float *)smem, tile, j, v);
            else
                *partial_at(q.partials, blockIdx.x, 2 * TILES, j * TILES + tile, THREADS) = v;
        }
    }
    if (q.splits > 1) return;
    const nk_gemm_problem p = output_of(q, at);
    const tile_out out = {0, at.token, at.end, at.nt * ROWS, p.n, &p.d, &p.alpha, &p.bias};
    store_tile<TOKENS, ROWS, THREADS>((float *)smem, out);
}

/* One CTA for each eight tokens of a tile. */
template <int TOKENS, int WARPS> __device__ inline void reduce(const sm80_grouped_gemm_params &q)
{
    constexpr int TILES = TOKENS / 8, ROWS = WARPS * 32, THREADS = WARPS * 32;
    __shared__ float stage[8 * SM80_OUT_PITCH(ROWS)];
    const int tile = blockIdx.x % TILES;
    const uint32_t index = blockIdx.x / TILES;
    place at;
    if (!find_place<TOKENS, WARPS>(q, index, at)) return;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        stage_quad<ROWS>(stage, 0, j,
                         reduce_partials(q.partials, index, (int)q.splits, 2 * TILES, j * TILES + tile, THREADS));
    }
    const nk_gemm_problem p = output_of(q, at);
    const tile_out out = {0, at.token + tile * 8, at.end, at.nt * ROWS, p.n, &p.d, &p.alpha, &p.bias};
    store_tile<8, ROWS, THREADS>(stage, out);
}

#define GROUPED_GEMM(name, kind, TOKENS, WARPS, STAGES, CTAS, KIND)                           \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, CTAS)                            \
        sm80_grouped_gemm_##name##_##kind(const __grid_constant__ sm80_grouped_gemm_params q) \
    {                                                                                         \
        grouped_gemm<TOKENS, WARPS, STAGES, KIND>(q);                                         \
    }

#define KERNELS(name, TOKENS, WARPS, STAGES, CTAS)                                            \
    GROUPED_GEMM(name, codes, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_CODES)                   \
    GROUPED_GEMM(name, halves, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_HALVES)                 \
    GROUPED_GEMM(name, bfloats, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_BFLOATS)               \
    GROUPED_GEMM(name, plain_halves, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_PLAIN_HALVES)     \
    GROUPED_GEMM(name, plain_bfloats, TOKENS, WARPS, STAGES, CTAS, SM80_GEMM_PLAIN_BFLOATS)   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                  \
        sm80_grouped_gemm_##name##_reduce(const __grid_constant__ sm80_grouped_gemm_params q) \
    {                                                                                         \
        reduce<TOKENS, WARPS>(q);                                                             \
    }

SM80_GEMM_TILES(KERNELS)
