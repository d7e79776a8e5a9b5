/* From a warpgroup's sums to elements of the output. A lane has those of weight rows g and g + 8 of its warp's 16, and
 * tokens 2 c and 2 c + 1 of every eight: (g, c) = (lane / 4, lane % 4). */
#ifndef NK_SM90_GEMM_STORE_CUH
#define NK_SM90_GEMM_STORE_CUH

#include "cuda/epilogue.cuh"
#include "sm90_gemm_tile.cuh"

/* Of this lane's two weight rows. */
typedef struct lane_rows {
    int64_t n[2];
    float alpha[2], bias[2];
} lane_rows;

/* 16-bit rows: a lane pair exchanges pairs of features, so that each stores four of one token. */
template <bool BFLOAT>
__device__ inline void store_whole(const nk_output &d, int batch, int64_t m, int64_t n, int64_t end, const float v[4])
{
    const int c = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
    const uint32_t low = movmatrix_trans(pair_of<BFLOAT>(v[0], v[1])),
                   high = movmatrix_trans(pair_of<BFLOAT>(v[2], v[3]));
    const uint32_t other = __shfl_xor_sync(~0u, c & 1 ? low : high, 1);
    uint8_t *at = output_at(d, batch, m + g, n + (c & 1) * 8 + c / 2 * 4);
    if (m + g < end) *(uint2 *)at = c & 1 ? make_uint2(other, high) : make_uint2(low, other);
}

/* gemm: eights FIRST .. FIRST + COUNT of this warpgroup's sums. */
template <class C, int FIRST, int COUNT>
__device__ inline void store(const nk_gemm_problem &p, const sm90_gemm_work &work, const gemm_tile &tile,
                             const consumer &c, const float (&sums)[C::SUMS])
{
    const int64_t first = tile.row + 64 * c.rows + 16 * c.warp;
    const int64_t end = token_end<C>(tile, p.m);
    const int batch = batch_of<C>(tile);
    const nk_output &d = p.d;
    nk_alpha alpha = p.alpha;
    nk_bias bias = p.bias;
    if (C::EXPERTS && alpha.data) alpha.data += tile.l * alpha.group_stride;
    if (C::EXPERTS && bias.data) bias.data += tile.l * bias.group_stride;
    const bool whole = d.dtype != NK_F32 && d.col_stride == 2 && first + 16 <= p.n &&
                       (((uintptr_t)d.data | d.row_stride | d.batch_stride) & 7) == 0;
    lane_rows rows;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        rows.n[i] = first + c.lane / 4 + 8 * i;
        rows.alpha[i] = alpha_at(alpha, min(rows.n[i], p.n - 1));
        rows.bias[i] = bias_at(bias, min(rows.n[i], p.n - 1));
    }
#pragma unroll
    for (int i = FIRST; i < FIRST + COUNT; i++) {
        const int64_t m = tile.token + 8 * i;
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = __fmaf_rn(rows.alpha[j / 2], sums[4 * i + j] * work.unit, rows.bias[j / 2]);
        if (whole && d.dtype == NK_F16) {
            store_whole<false>(d, batch, m, first, end, v);
        } else if (whole) {
            store_whole<true>(d, batch, m, first, end, v);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int64_t token = m + 2 * (c.lane % 4) + j % 2, n = rows.n[j / 2];
                if (token < end && n < p.n) store_float(output_at(d, batch, token, n), d.dtype, v[j]);
            }
        }
    }
}

/* dual_gemm: eight features of eight tokens are a piece of rows, four bytes a lane. */
template <class C, int FIRST, int COUNT>
__device__ inline void store(const nk_dual_gemm_problem &p, const sm90_gemm_work &work, const gemm_tile &tile,
                             const consumer &c, const float (&sums)[C::SUMS])
{
    const int64_t first = tile.row + 32 * c.rows + 8 * c.warp, n = first + c.lane / 4, known = min(n, p.n - 1);
    const nk_output &d = p.d;
    const bool whole = d.dtype != NK_F32 && d.col_stride == 2 && first + 8 <= p.n &&
                       (((uintptr_t)d.data | d.row_stride | d.batch_stride) & 3) == 0;
    const float alpha1 = alpha_at(p.alpha1, known), alpha2 = alpha_at(p.alpha2, known);
#pragma unroll
    for (int i = FIRST; i < FIRST + COUNT; i++) {
        const int64_t m = tile.token + 8 * i, row = m + c.lane / 4;
        float v[2];
#pragma unroll
        for (int j = 0; j < 2; j++)
            v[j] = __fmul_rn(alpha1, sums[4 * i + j] * work.unit);
        activate<2>(p.activation, v);
#pragma unroll
        for (int j = 0; j < 2; j++)
            v[j] = __fmul_rn(v[j], __fmul_rn(alpha2, sums[4 * i + 2 + j] * work.unit));
        if (whole) {
            const bool half = d.dtype == NK_F16;
            const uint32_t pair = movmatrix_trans(half ? pair_of<false>(v[0], v[1]) : pair_of<true>(v[0], v[1]));
            if (row < p.m) *(uint32_t *)output_at(d, batch_of<C>(tile), row, first + 2 * (c.lane % 4)) = pair;
        } else {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int64_t token = m + 2 * (c.lane % 4) + j;
                if (token < p.m && n < p.n) store_float(output_at(d, batch_of<C>(tile), token, n), d.dtype, v[j]);
            }
        }
    }
}

#endif
