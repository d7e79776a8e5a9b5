/* Two 16-bit floats in a 32-bit word, the first in the low half: what tensor cores multiply. BF16: bf16, else fp16.
 */
#ifndef NK_PAIRS_CUH
#define NK_PAIRS_CUH

#include "cuda/ptx/mma.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* Each rounded to nearest even. */
template <bool BF16> __device__ inline uint32_t pair_of(float low, float high)
{
    if (BF16) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *(const uint32_t *)&pair;
    }
    const __half2 pair = __floats2half2_rn(low, high);
    return *(const uint32_t *)&pair;
}

/* Eight neighbours. */
template <bool BF16> __device__ inline uint4 pack_eight(const float *v)
{
    return make_uint4(pair_of<BF16>(v[0], v[1]), pair_of<BF16>(v[2], v[3]), pair_of<BF16>(v[4], v[5]),
                      pair_of<BF16>(v[6], v[7]));
}

/* A bf16 pair of two floats whose lower 16 bits are zero: bf16 has them exactly. */
__device__ inline uint32_t exact_bf16x2(float low, float high)
{
    return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

/* The low float of a pair, or the high one. */
template <bool BF16> __device__ inline float float_of(uint32_t pair, int high)
{
    if (BF16) return __uint_as_float(high ? pair & 0xFFFF0000u : pair << 16);
    return high ? __high2float(*(const __half2 *)&pair) : __low2float(*(const __half2 *)&pair);
}

template <bool BF16> __device__ inline uint32_t multiply_pairs(uint32_t x, uint32_t y)
{
    if (BF16) {
        const __nv_bfloat162 product = __hmul2(*(const __nv_bfloat162 *)&x, *(const __nv_bfloat162 *)&y);
        return *(const uint32_t *)&product;
    }
    const __half2 product = __hmul2(*(const __half2 *)&x, *(const __half2 *)&y);
    return *(const uint32_t *)&product;
}

__device__ inline uint32_t multiply_add_bf16x2(uint32_t x, uint32_t y, uint32_t z)
{
    const __nv_bfloat162 sum =
        __hfma2(*(const __nv_bfloat162 *)&x, *(const __nv_bfloat162 *)&y, *(const __nv_bfloat162 *)&z);
    return *(const uint32_t *)&sum;
}

/* d += a b: a 16x16, b 16x8, d 16x8 in fp32. */
template <bool BF16> __device__ inline void mma_pairs(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    if (BF16)
        mma_m16n8k16_bf16(d, a, b0, b1);
    else
        mma_m16n8k16_f16(d, a, b0, b1);
}

/* Elements 0..7 as pairs (0,4), (1,5), (2,6), (3,7), the order in which nvfp4.cuh decodes eight codes. Any order of K
 * is right if both operands have the same. */
__device__ inline uint4 in_decode_order(const uint4 &v)
{
    return make_uint4(__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410),
                      __byte_perm(v.y, v.w, 0x7632));
}

#endif
