/* From a problem and a tile to a thread's rows, and from its sums to the output. */
#ifndef NK_SM80_TILE_CUH
#define NK_SM80_TILE_CUH

#include "sm80_gemm_params.h"
#include "sm80_mainloop.cuh"

__device__ inline int64_t at_most(int64_t value, int64_t most) { return value < most ? value : most; }

/* This lane's weight rows in tile `nt`: 32 apart, so that one 16-byte word of a blocked SF atom holds all four. */
template <int WARPS> __device__ inline int64_t first_row(int64_t nt)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    return (nt * (WARPS / 4) + warp / 4) * NK_SF_ATOM_ROWS + warp % 4 * 8 + lane / 4;
}

/* One pair of slots: rows `row` and row + 32. Rows beyond N are read as one that is there, and never stored. */
__device__ inline void point_pair(const nk_operand &b, int64_t l, int64_t row, int64_t n, int64_t k, int pair,
                                  weight_rows &w)
{
    const int64_t present = at_most(row, n - 1);
    w.row[pair] = b.data + l * b.batch_stride + present * b.row_stride;
    w.row_step[pair] = 32 * b.row_stride;
    w.sf_step[pair] = 32 * b.sf_row_stride;
    w.alone[pair] = row + 32 >= n;
    w.k_stride = b.k_stride;
    w.blocked = b.sf_layout == NK_SF_BLOCKED;
    /* A pair is two of an atom's four row quarters, and an atom with any row is there as a whole; one wholly beyond N
     * is read as the last. */
    const int64_t last = (n - 1) / NK_SF_ATOM_ROWS * NK_SF_ATOM_ROWS + row % NK_SF_ATOM_ROWS;
    w.sf[pair] = sf_at(b, l, w.blocked ? at_most(row, last) : present, 0, k / NK_SF_VEC);
}

/* The rows row, + 32, + 64, + 96 of one matrix. */
__device__ inline void point_weights(const nk_operand &b, int64_t l, int64_t row, int64_t n, int64_t k, weight_rows &w)
{
    point_pair(b, l, row, n, k, 0, w);
    point_pair(b, l, row + 64, n, k, 1, w);
    w.adjacent = true;
}

/* This lane's rows of the n8 tiles tile, tile + tile_step, .. from `token` on. Tokens beyond `end` are read as the last
 * one and never stored; sf_row is what a blocked SF calls token 0. */
template <int ITEMS>
__device__ inline void point_tokens(const nk_operand &a, int64_t l, int64_t token, int64_t end, int64_t sf_row,
                                    int64_t k, int tile, int tile_step, token_rows_t<ITEMS> &x)
{
    x.blocked = a.sf_layout == NK_SF_BLOCKED;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const int64_t row = at_most(token + (tile + i * tile_step) * 8 + (threadIdx.x & 31) / 4, end - 1);
        x.row[i] = a.data + l * a.batch_stride + row * a.row_stride;
        x.sf[i] = sf_at(a, l, row + (x.blocked ? sf_row : 0), 0, k / NK_SF_VEC);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* A finished tile: as fragments to shared memory, from there to the output in whole rows or columns                */
/* ---------------------------------------------------------------------------------------------------------------- */

__device__ inline float4 scaled(const float acc[4], float unit)
{
    return make_float4(acc[0] * unit, acc[1] * unit, acc[2] * unit, acc[3] * unit);
}

/* v: this lane's row `slot` and `slot + 2` of its four, for tokens 2 (lane % 4) and the next of n8 tile `tile`. ROWS:
 * weight rows, as many as threads. */
template <int ROWS> __device__ inline void stage_quad(float *stage, int tile, int slot, float4 v)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int row = warp / 4 * NK_SF_ATOM_ROWS + warp % 4 * 8 + lane / 4 + 32 * slot, token = tile * 8 + lane % 4 * 2;
    float *at = stage + token * SM80_OUT_PITCH(ROWS) + row;
    at[0] = v.x;
    at[SM80_OUT_PITCH(ROWS)] = v.y;
    at[64] = v.z;
    at[SM80_OUT_PITCH(ROWS) + 64] = v.w;
}

__device__ inline uint32_t pack_halves(float x, float y)
{
    const __half2 v = __floats2half2_rn(x, y);
    return *(const uint32_t *)&v;
}

__device__ inline uint32_t pack_bfloats(float x, float y)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    return *(const uint32_t *)&v;
}

/* COUNT floats: one, or four side by side in 16 aligned bytes. */
template <int COUNT> __device__ inline void load_floats(const float *at, float v[COUNT])
{
    if constexpr (COUNT == 4) {
        const float4 four = *(const float4 *)at;
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
        v[0] = *at;
    }
}

/* Four neighbouring elements; the address is aligned to their size. */
__device__ inline void store_four(uint8_t *at, nk_dtype dtype, float4 v)
{
    if (dtype == NK_F32)
        *(float4 *)at = v;
    else if (dtype == NK_F16)
        *(uint2 *)at = make_uint2(pack_halves(v.x, v.y), pack_halves(v.z, v.w));
    else
        *(uint2 *)at = make_uint2(pack_bfloats(v.x, v.y), pack_bfloats(v.z, v.w));
}

/* Where a tile goes. */
typedef struct tile_out {
    int64_t l, token, token_end, row, row_end;
    const nk_output *d;
} tile_out;

/* How a token's staged sums become COUNT neighbouring elements of its row: what a thread needs once is in `columns`.
 * This is how gemm and grouped_gemm do it, alpha[n] * sum + bias[n]; dual_gemm has its own. */
struct scaled_sums {
    const nk_alpha &alpha;
    const nk_bias &bias;

    template <int COUNT> struct columns {
        float alpha[COUNT], bias[COUNT];
        int first; /* of the tile's */

        __device__ columns(const scaled_sums &e, const tile_out &o, int column) : first(column)
        {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const int64_t n = at_most(o.row + column + i, o.row_end - 1);
                alpha[i] = alpha_at(e.alpha, n);
                bias[i] = bias_at(e.bias, n);
            }
        }

        __device__ void finish(const float *sums, float v[COUNT]) const
        {
            load_floats<COUNT>(sums + first, v);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                v[i] = __fmaf_rn(alpha[i], v[i], bias[i]);
        }
    };
};

/* Rows of the output, four columns a thread. */
template <int TOKENS, int ROWS, int THREADS, typename ENDING>
__device__ inline void store_rows(const float *stage, const tile_out &o, const ENDING &ending)
{
    constexpr int QUADS = ROWS / 4;
    static_assert(THREADS % QUADS == 0 || QUADS % THREADS == 0, "a thread keeps its columns");
    const int column = threadIdx.x % QUADS * 4;
    const int64_t n = o.row + column;
    const int64_t size = o.d->dtype == NK_F32 ? 4 : 2;
    const uint8_t *base = output_at(*o.d, o.l, 0, n);
    const bool wide =
        n + 4 <= o.row_end && o.d->col_stride == size && (((uintptr_t)base | o.d->row_stride) & (4 * size - 1)) == 0;
    if (n >= o.row_end) return;
    const typename ENDING::template columns<4> columns(ending, o, column);
#pragma unroll 1
    for (int token = threadIdx.x / QUADS; token < TOKENS && o.token + token < o.token_end; token += THREADS / QUADS) {
        float v[4];
        columns.finish(stage + token * SM80_OUT_PITCH(THREADS), v);
        uint8_t *at = output_at(*o.d, o.l, o.token + token, n);
        if (wide) {
            store_four(at, o.d->dtype, make_float4(v[0], v[1], v[2], v[3]));
            continue;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (n + i < o.row_end) store_float(at + i * o.d->col_stride, o.d->dtype, v[i]);
        }
    }
}

/* Columns of the output where tokens are neighbours in memory. */
template <int TOKENS, int ROWS, int THREADS, typename ENDING>
__device__ inline void store_columns(const float *stage, const tile_out &o, const ENDING &ending)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < TOKENS * ROWS; i += THREADS) {
        const int token = i % TOKENS, row = i / TOKENS;
        const int64_t m = o.token + token, n = o.row + row;
        if (m >= o.token_end || n >= o.row_end) continue;
        float v[1];
        typename ENDING::template columns<1>(ending, o, row).finish(stage + token * SM80_OUT_PITCH(THREADS), v);
        store_float(output_at(*o.d, o.l, m, n), o.d->dtype, v[0]);
    }
}

/* ROWS columns of the output, of as many sums a token as there are threads, staged by stage_quad(). All threads; ends
 * the use of `stage` only with the caller's next barrier. */
template <int TOKENS, int ROWS, int THREADS, typename ENDING>
__device__ inline void store_tile(const float *stage, const tile_out &o, const ENDING &ending)
{
    __syncthreads();
    if (o.d->row_stride < o.d->col_stride)
        store_columns<TOKENS, ROWS, THREADS>(stage, o, ending);
    else
        store_rows<TOKENS, ROWS, THREADS>(stage, o, ending);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Tiles whose K several CTAs share: parts of their sums, in the workspace as the threads hold them                 */
/* ---------------------------------------------------------------------------------------------------------------- */

__device__ inline uint32_t part_of(uint32_t cta, bool begins_tile) { return 2 * cta + (begins_tile ? 1 : 0); }

__device__ inline float4 *partial_at(float *partials, uint32_t part, int quads, int quad, int threads)
{
    return (float4 *)partials + ((int64_t)part * quads + quad) * threads + threadIdx.x;
}

/* A shared tile, as the kernel that adds parts finds it: from the first CTA boundary inside it. */
typedef struct shared_tile {
    uint32_t cta, last; /* the CTAs that have parts: cta - 1 .. last */
} shared_tile;

/* Whether the boundary before `cta` is the first inside a tile of units begin .. begin + units. */
__device__ inline bool is_shared_at(uint32_t cta, uint32_t share, uint32_t begin, uint32_t units, shared_tile &t)
{
    const uint32_t boundary = cta * share;
    t.cta = cta;
    t.last = (begin + units - 1) / share;
    return boundary != begin && boundary - begin <= share;
}

/* The sum of its parts, in their order. */
__device__ inline float4 sum_parts(float *partials, const shared_tile &t, int quads, int quad, int threads)
{
    float4 sum = __ldcg(partial_at(partials, part_of(t.cta - 1, true), quads, quad, threads));
#pragma unroll 4
    for (uint32_t c = t.cta; c <= t.last; c++) {
        const float4 v = __ldcg(partial_at(partials, part_of(c, false), quads, quad, threads));
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    return sum;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* gemm and dual_gemm: tiles of the same weights are neighbours and meet in L2                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct tile_place {
    uint32_t l, nt, mt;
} tile_place;

__device__ inline tile_place place_of(const sm80_gemm_params &q, uint32_t tile)
{
    const uint32_t rest = tile / q.m_tiles;
    return {rest / q.n_tiles, rest % q.n_tiles, tile % q.m_tiles};
}

/* Calls multiply(tile, first unit, units) for what this CTA takes, shared memory free at every call. */
template <typename F> __device__ inline void each_part(const sm80_gemm_params &q, F multiply)
{
    const uint32_t begin = blockIdx.x * q.share;
    uint32_t tile = begin / q.units, first = begin % q.units, left = q.share;
#pragma unroll 1
    while (true) {
        const uint32_t units = min(left, q.units - first);
        multiply(tile, first, units);
        left -= units;
        if (left == 0 || ++tile == q.tiles) return;
        first = 0;
        __syncthreads();
    }
}

#endif
