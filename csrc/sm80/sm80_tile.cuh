/* From a problem and a tile to a thread's rows, and from its sums to the output. */
#ifndef NK_SM80_TILE_CUH
#define NK_SM80_TILE_CUH

#include "sm80_mainloop.cuh"

/* n8 tiles of tokens that one thread decodes. */
#define ITEMS_OF(tokens, warps) ((tokens) / 8 > (warps) ? (tokens) / 8 / (warps) : 1)

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
    const bool second = row + 32 < n;
    w.row[pair] = b.data + l * b.batch_stride + present * b.row_stride;
    w.row_step[pair] = second ? 32 * b.row_stride : 0;
    w.sf_step[pair] = second ? 32 * b.sf_row_stride : 0;
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

/* Tokens beyond `end` are read as the last one and never stored; sf_row is what a blocked SF calls token 0. */
template <int TOKENS, int WARPS, int ITEMS>
__device__ inline void point_tokens(const nk_operand &a, int64_t l, int64_t token, int64_t end, int64_t sf_row,
                                    int64_t k, token_rows_t<ITEMS> &x)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    x.sf_step = a.sf_layout == NK_SF_BLOCKED ? NK_SF_ATOM_BYTES : 4;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const int64_t row = at_most(token + (warp + i * WARPS) * 8 + lane / 4, end - 1);
        x.row[i] = a.data + l * a.batch_stride + row * a.row_stride;
        x.sf[i] = sf_at(a, l, row + (a.sf_layout == NK_SF_BLOCKED ? sf_row : 0), 0, k / NK_SF_VEC);
    }
}

/* Of tile `tile` of n8 tokens, what a thread holds: rows j and j + 2 of its four, tokens 2 (lane % 4) and the next. */
__device__ inline int64_t token_of(int tile) { return tile * 8 + (threadIdx.x & 3) * 2; }

__device__ inline void store_sum(const nk_gemm_problem &p, int64_t l, int64_t m, int64_t n, float sum)
{
    store_float(output_at(p.d, l, m, n), p.d.dtype, scale_and_add(p.alpha, p.bias, n, sum));
}

/* v: (row, token), (row, token + 1), (row + 64, token), (row + 64, token + 1); tokens end at `end`. */
__device__ inline void store_quad(const nk_gemm_problem &p, int64_t l, int64_t token, int64_t end, int64_t row,
                                  float4 v)
{
    const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t n = row + (i >> 1) * 64, m = token + (i & 1);
        if (n < p.n && m < end) store_sum(p, l, m, n, values[i]);
    }
}

__device__ inline float4 scaled(const float acc[4], float unit)
{
    return make_float4(acc[0] * unit, acc[1] * unit, acc[2] * unit, acc[3] * unit);
}

/* Where a thread keeps quad `quad` of a tile's partial sums: [split tile][quad][thread]. */
__device__ inline float4 *partial_at(float *partials, int64_t split_tile, int quads, int quad, int threads)
{
    return (float4 *)partials + (split_tile * quads + quad) * threads + threadIdx.x;
}

/* Sums over splits, in their order. */
__device__ inline float4 reduce_partials(float *partials, int64_t tile, int splits, int quads, int quad, int threads)
{
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int i = 0; i < splits; i++) {
        const float4 v = __ldcg(partial_at(partials, tile * splits + i, quads, quad, threads));
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    return sum;
}

#endif
