/* Where an operand's bytes are: scale factors and output elements by their indices, and bytes that no aligned load
 * reaches. */
#ifndef NK_OPERAND_CUH
#define NK_OPERAND_CUH

#include "nk_format.h"
#include "nk_problem.h"

__device__ inline bool is_aligned(const void *at, uint32_t bytes) { return ((uintptr_t)at & (bytes - 1)) == 0; }

/* Scale factor (row, col) of an operand that has `cols` = K/16 of them in a row. */
__device__ inline const uint8_t *sf_at(const nk_operand &o, int64_t l, int64_t row, int64_t col, int64_t cols)
{
    const uint8_t *sf = o.sf + l * o.sf_batch_stride;
    return o.sf_layout == NK_SF_BLOCKED ? sf + nk_sf_blocked_offset(row, col, cols) : sf + row * o.sf_row_stride + col;
}

__device__ inline uint8_t *output_at(const nk_output &d, int64_t l, int64_t m, int64_t n)
{
    return d.data + l * d.batch_stride + m * d.row_stride + n * d.col_stride;
}

/* The first `valid` of 16 bytes; the rest is zero. */
__device__ inline uint4 fetch_bytes(const uint8_t *at, int64_t valid)
{
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; w++) {
        words[w] = 0;
        for (int i = 0; i < 4 && 4 * w + i < valid; i++)
            words[w] |= (uint32_t)at[4 * w + i] << 8 * i;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

#endif
