/* Bytes to float and back, each rounded once to nearest even. cpu/cpu_convert.h has the same for the CPU; kernels are
 * compiled without flushing denormals and without contraction (-fmad=false), so that both give the same bits. */
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

#endif
