/* Scalars on the device: bytes to float and back, each rounding once to nearest even. The same meaning as
 * cpu/cpu_convert.h; images are compiled without FTZ and without contraction (-fmad=false). */
#ifndef NK_CONVERT_CUH
#define NK_CONVERT_CUH

#include "nk_format.h"
#include "nk_problem.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* Bit 7 is ignored; 0x7F is NaN. The magnitude's bits are those of a float scaled by 2^-120. */
__device__ inline float e4m3_to_float(uint32_t byte)
{
    uint32_t magnitude = byte & 0x7F;
    return magnitude == NK_E4M3_NAN ? __uint_as_float(0x7FC00000) : __uint_as_float(magnitude << 20) * 0x1p120f;
}

/* One element of an fp16, bf16 or fp32 tensor. */
__device__ inline float load_float(const uint8_t *at, nk_dtype dtype)
{
    if (dtype == NK_F32) return *(const float *)at;
    if (dtype == NK_F16) return __half2float(*(const __half *)at);
    return __bfloat162float(*(const __nv_bfloat16 *)at);
}

__device__ inline void store_float(uint8_t *at, nk_dtype dtype, float value)
{
    if (dtype == NK_F32)
        *(float *)at = value;
    else if (dtype == NK_F16)
        *(__half *)at = __float2half_rn(value);
    else
        *(__nv_bfloat16 *)at = __float2bfloat16_rn(value);
}

__device__ inline float alpha_at(const nk_alpha &alpha, int64_t n)
{
    return alpha.data ? alpha.data[n * alpha.stride] : alpha.value;
}

/* For whoever wants it before the sum is there; -0 where there is none: added to anything, it leaves that as it is. */
__device__ inline float bias_at(const nk_bias &bias, int64_t n)
{
    return bias.data ? load_float(bias.data + n * bias.stride, bias.dtype) : -0.0f;
}

/* alpha[n] * sum + bias[n] with one rounding */
__device__ inline float scale_and_add(const nk_alpha &alpha, const nk_bias &bias, int64_t n, float sum)
{
    if (!bias.data) return __fmul_rn(alpha_at(alpha, n), sum);
    return __fmaf_rn(alpha_at(alpha, n), sum, load_float(bias.data + n * bias.stride, bias.dtype));
}

__device__ inline uint8_t *output_at(const nk_output &d, int64_t l, int64_t m, int64_t n)
{
    return d.data + l * d.batch_stride + m * d.row_stride + n * d.col_stride;
}

/* Where scale factor (row, col) of an operand with `cols` = K/16 of them a row is. */
__device__ inline const uint8_t *sf_at(const nk_operand &o, int64_t l, int64_t row, int64_t col, int64_t cols)
{
    const uint8_t *sf = o.sf + l * o.sf_batch_stride;
    return o.sf_layout == NK_SF_BLOCKED ? sf + nk_sf_blocked_offset(row, col, cols) : sf + row * o.sf_row_stride + col;
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
