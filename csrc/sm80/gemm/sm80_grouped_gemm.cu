/* D_g[m,n] = convert(alpha_g[n] * sum_k A_g[m,k] B_g[n,k] + bias_g[n]) for every group g
 *
 * A tile is the gemm's: WARPS * 32 weight rows x TOKENS tokens of one group. All groups' steps of K, laid end to end,
 * are dealt out evenly to the CTAs, so that neither the groups' sizes nor the experts' luck leaves one waiting; sums of
 * shared tiles go to the workspace and a second kernel adds them in order. Contiguous form: a CTA finds out how many
 * tiles there are, and whose a tile is, by a scan of `offsets`.
 *
 * Roles, synchronisation, memory map: sm80_mainloop.cuh. */
#include "sm80_expert.cuh"
#include "sm80_grouped_gemm_params.h"
#include "sm80_tile.cuh"

extern __shared__ uint4 smem[];

typedef struct dealt {
    uint32_t token_tiles; /* contiguous: of all experts */
    uint32_t units, share;
} dealt;

template <int TOKENS, int WARPS>
__device__ inline expert_tokens expert_of(const sm80_grouped_gemm_params &q, uint32_t token_tile)
{
    auto &scan = *(expert_scan_t<WARPS> *)smem;
    static_assert(sizeof scan <= SM80_EXPERT_SCAN_BYTES, "what the host asks for");
    return find_expert<TOKENS>(scan, q.offsets, q.experts, q.group[0].gemm.m, token_tile);
}

template <int TOKENS, int WARPS> __device__ inline dealt deal(const sm80_grouped_gemm_params &q)
{
    dealt d = {0, q.units, 0};
    if (q.offsets) {
        d.token_tiles = expert_of<TOKENS, WARPS>(q, NO_TILE).tiles;
        d.units = d.token_tiles * (uint32_t)nk_ceil_div(q.group[0].gemm.n, WARPS * 32) * q.group[0].units;
    }
    d.share = (d.units + q.ctas - 1) / q.ctas;
    return d;
}

/* A tile of a group. */
typedef struct place {
    int group;             /* of the parameters */
    bool found;            /* false: nothing to do */
    uint32_t begin, units; /* its first unit of all; how many it has */
    int64_t expert;        /* contiguous: which weights, alpha and bias */
    int64_t nt;            /* tile of weight rows */
    int64_t token, end;    /* the tile's first token; the group's end */
    int64_t sf_row;        /* blocked sfa: a token's row in it, less the token */
} place;

/* The group that has `unit`. */
__device__ inline int group_of(const sm80_grouped_gemm_params &q, uint32_t unit)
{
    int low = 0, high = q.count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (q.group[middle].begin <= unit)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Blocked factors of all experts' tokens, each expert's from a new atom on. Offsets that nobody has checked may need
 * more than there are. */
__device__ inline bool find_sf_row(const sm80_grouped_gemm_params &q, const expert_tokens &e, place &at)
{
    const nk_gemm_problem &p = q.group[0].gemm;
    if (!p.a.sf || p.a.sf_layout != NK_SF_BLOCKED) return true;
    at.sf_row = e.atom_row * NK_SF_ATOM_ROWS - e.begin;
    const int64_t atom_rows = e.atom_row + nk_ceil_div(e.end - e.begin, NK_SF_ATOM_ROWS);
    return atom_rows * nk_sf_padded_cols(p.k / NK_SF_VEC) * NK_SF_ATOM_ROWS <= q.a_sf_bytes;
}

/* The tile that has `unit`; the same answer in all threads of the CTA. */
template <int TOKENS, int WARPS>
__device__ inline place place_of(const sm80_grouped_gemm_params &q, const dealt &d, uint32_t unit)
{
    place at = {};
    at.group = q.offsets ? 0 : group_of(q, unit);
    const sm80_group &g = q.group[at.group];
    const uint32_t tile = (unit - g.begin) / g.units;
    at.begin = g.begin + tile * g.units;
    at.units = g.units;
    if (!q.offsets) {
        const uint32_t m_tiles = (uint32_t)nk_ceil_div(g.gemm.m, TOKENS);
        at.nt = tile / m_tiles;
        at.token = tile % m_tiles * (int64_t)TOKENS;
        at.end = g.gemm.m;
        at.found = true;
        return at;
    }
    const expert_tokens e = expert_of<TOKENS, WARPS>(q, tile % d.token_tiles);
    at.expert = e.expert;
    at.nt = tile / d.token_tiles;
    at.token = e.first;
    at.end = e.end;
    at.found = e.found && find_sf_row(q, e, at);
    return at;
}

/* The group's problem as its output sees it. */
__device__ inline nk_gemm_problem output_of(const sm80_grouped_gemm_params &q, const place &at)
{
    nk_gemm_problem p = q.group[at.group].gemm;
    if (p.alpha.data) p.alpha.data += at.expert * p.alpha.group_stride;
    if (p.bias.data) p.bias.data += at.expert * p.bias.group_stride;
    return p;
}

/* `units` of a tile from `first` on. Begins with shared memory free, ends with it in use by the stores. */
template <int TOKENS, int WARPS, int STAGES, int KIND>
__device__ inline void multiply_tile(const sm80_grouped_gemm_params &q, const place &at, uint32_t first, uint32_t units)
{
    using S = smem_t<TOKENS, WARPS, STAGES, KIND>;
    constexpr int TILES = TOKENS / 8, ROWS = WARPS * 32, THREADS = WARPS * 32;
    S &s = *(S *)smem;
    const bool whole = units == at.units;
    float acc[2][TILES][4] = {};
    {
        const nk_gemm_problem &p = q.group[at.group].gemm;
        weight_rows w;
        token_rows_t<S::ITEMS> x;
        point_weights(p.b, at.expert, first_row<WARPS>(at.nt), p.n, p.k, w);
        point_tokens(p.a, 0, at.token, at.end, at.sf_row, p.k, threadIdx.x >> 5, WARPS, x);
        const uint32_t steps = whole ? q.group[at.group].steps : units;
        accumulate(s, w, x, (int)(p.k / NK_SF_VEC), (int)first, (int)steps, acc);
    }
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
    const nk_gemm_problem p = output_of(q, at);
    const tile_out out = {0, at.token, at.end, at.nt * ROWS, p.n, &p.d};
    store_tile<TOKENS, ROWS, THREADS>((float *)smem, out, scaled_sums{p.alpha, p.bias});
}

template <int TOKENS, int WARPS, int STAGES, int KIND>
__device__ inline void grouped_gemm(const sm80_grouped_gemm_params &q)
{
    const dealt d = deal<TOKENS, WARPS>(q);
    uint32_t unit = blockIdx.x * d.share;
    const uint32_t end = min(unit + d.share, d.units);
#pragma unroll 1
    while (unit < end) {
        const place at = place_of<TOKENS, WARPS>(q, d, unit);
        const uint32_t first = unit - at.begin, units = min(end - unit, at.units - first);
        if (at.found) multiply_tile<TOKENS, WARPS, STAGES, KIND>(q, at, first, units);
        unit += units;
        __syncthreads();
    }
}

/* One CTA for each boundary between two of the other kernel's and each eight tokens. */
template <int TOKENS, int WARPS> __device__ inline void reduce(const sm80_grouped_gemm_params &q)
{
    constexpr int TILES = TOKENS / 8, ROWS = WARPS * 32, THREADS = WARPS * 32;
    __shared__ __align__(16) float stage[8 * SM80_OUT_PITCH(ROWS)]; /* read four at a time */
    const uint32_t cta = blockIdx.x / TILES + 1, eight = blockIdx.x % TILES;
    const dealt d = deal<TOKENS, WARPS>(q);
    if (cta * d.share >= d.units) return;
    const place at = place_of<TOKENS, WARPS>(q, d, cta * d.share);
    shared_tile shared;
    if (!is_shared_at(cta, d.share, at.begin, at.units, shared) || !at.found) return;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        stage_quad<ROWS>(stage, 0, j, sum_parts(q.partials, shared, 2 * TILES, j * TILES + eight, THREADS));
    }
    const nk_gemm_problem p = output_of(q, at);
    const tile_out out = {0, at.token + eight * 8, at.end, at.nt * ROWS, p.n, &p.d};
    store_tile<8, ROWS, THREADS>(stage, out, scaled_sums{p.alpha, p.bias});
}

#define GROUPED_GEMM(name, kind, TOKENS, WARPS, STAGES, CTAS, KIND)                           \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, CTAS)                            \
        sm80_grouped_gemm_##name##_##kind(const __grid_constant__ sm80_grouped_gemm_params q) \
    {                                                                                         \
        griddepcontrol_launch_dependents();                                                   \
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
        griddepcontrol_wait();                                                                \
        reduce<TOKENS, WARPS>(q);                                                             \
    }

SM80_GEMM_TILES(KERNELS)
