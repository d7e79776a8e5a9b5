/* A block, 16 numbers in memory, to codes and a scale byte, without a branch for a single element. How a number becomes
 * a code or a scale byte, a row says by
 *
 *   CONVERT::e4m3_of(v)                    v >= 0; more than 448 is 448
 *   CONVERT::e2m1x8_of(x, half, to_code)   elements 8 half .. 8 half + 7 of block x, times to_code >= 0. Infinity's
 *                                          code is 6 with its sign, even if to_code is 0 */
#ifndef NK_QUANTIZE_ENCODE_CUH
#define NK_QUANTIZE_ENCODE_CUH

#include "activation.cuh"
#include "encode.cuh"

/* A block as it lies in memory: pairs of 16-bit elements, or fp32. */
template <nk_dtype DTYPE> struct block {
    static constexpr int WORDS = DTYPE == NK_F32 ? 16 : 8;
    uint32_t words[WORDS];
};

/* The low float of a pair of 16-bit elements, or the high one. */
template <nk_dtype DTYPE> __device__ inline float pair_half(uint32_t pair, int high)
{
    return float_of<DTYPE == NK_BF16>(pair, high);
}

template <nk_dtype DTYPE> __device__ inline float element(const block<DTYPE> &x, int i)
{
    if (DTYPE == NK_F32) return __uint_as_float(x.words[i]);
    return pair_half<DTYPE>(x.words[i / 2], i & 1);
}

/* The larger of two words without signs, each half of a pair by itself; NaN if one is NaN. */
template <nk_dtype DTYPE> __device__ inline uint32_t max_magnitudes(uint32_t x, uint32_t y)
{
    if (DTYPE == NK_F32) return max(x, y);
    if (DTYPE == NK_F16) {
        const __half2 pair = __hmax2_nan(*(const __half2 *)&x, *(const __half2 *)&y);
        return *(const uint32_t *)&pair;
    }
    const __nv_bfloat162 pair = __hmax2_nan(*(const __nv_bfloat162 *)&x, *(const __nv_bfloat162 *)&y);
    return *(const uint32_t *)&pair;
}

/* Bits of the largest magnitude as a float; above INFINITY_BITS if an element is NaN. */
template <nk_dtype DTYPE> __device__ inline uint32_t amax_bits(const block<DTYPE> &x)
{
    const uint32_t magnitude = DTYPE == NK_F32 ? 0x7FFFFFFF : 0x7FFF7FFF;
    uint32_t amax = x.words[0] & magnitude;
#pragma unroll
    for (int i = 1; i < x.WORDS; i++)
        amax = max_magnitudes<DTYPE>(amax, x.words[i] & magnitude);
    if (DTYPE == NK_F32) return amax;
    return max(__float_as_uint(pair_half<DTYPE>(amax, 0)), __float_as_uint(pair_half<DTYPE>(amax, 1)));
}

__device__ inline uint32_t low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

/* Eight codes, each in the lowest byte of its word, in their order. */
__device__ inline uint32_t codes_of_bytes(const uint32_t m[8])
{
    return low_bytes(m[0], m[2], m[4], m[6]) + (low_bytes(m[1], m[3], m[5], m[7]) << 4);
}

/* The signs of elements 8 half .. 8 half + 7, at the bits where their codes have them. */
template <nk_dtype DTYPE> __device__ inline uint32_t code_signs(const block<DTYPE> &x, int half)
{
    uint32_t even, odd; /* the elements' highest bytes */
    if (DTYPE == NK_F32) {
        const uint32_t *w = x.words + half * (x.WORDS / 2);
        even = __byte_perm(__byte_perm(w[0], w[2], 0x0073), __byte_perm(w[4], w[6], 0x0073), 0x5410);
        odd = __byte_perm(__byte_perm(w[1], w[3], 0x0073), __byte_perm(w[5], w[7], 0x0073), 0x5410);
    } else {
        const uint32_t *w = x.words + half * (x.WORDS / 2);
        const uint32_t low = __byte_perm(w[0], w[1], 0x7351), high = __byte_perm(w[2], w[3], 0x7351);
        even = __byte_perm(low, high, 0x5410);
        odd = __byte_perm(low, high, 0x7632);
    }
    return (even >> 4 & 0x08080808) | (odd & 0x80808080);
}

template <typename CONVERT, nk_dtype DTYPE>
__device__ inline uint32_t encode_block(const encoder &e, float smallest_scale, const block<DTYPE> &x,
                                        uint32_t codes[2])
{
    const uint32_t amax = amax_bits(x);
    codes[0] = codes[1] = 0;
    if (is_poisoned(e, amax)) return NK_E4M3_NAN;
    const uint32_t sf = CONVERT::e4m3_of(fmaxf(__fmul_rn(__uint_as_float(amax), e.to_sf), smallest_scale));
    if (sf == 0) return 0;
    const float to_code = code_factor(e, sf);
#pragma unroll
    for (int half = 0; half < 2; half++)
        codes[half] = CONVERT::e2m1x8_of(x, half, to_code);
    return sf;
}

/* 16 bytes of elements. */
template <nk_dtype DTYPE, bool WIDE> __device__ inline uint4 load_vector(const uint8_t *at)
{
    if constexpr (WIDE) {
        return __ldg((const uint4 *)at);
    } else {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[i] = DTYPE == NK_F32 ? __ldg((const uint32_t *)at + i)
                                       : __ldg((const uint16_t *)at + 2 * i) |
                                             (uint32_t)__ldg((const uint16_t *)at + 2 * i + 1) << 16;
        }
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
}

template <nk_dtype DTYPE, bool WIDE> __device__ inline void load_block(const uint8_t *at, block<DTYPE> &x)
{
#pragma unroll
    for (int i = 0; i < x.WORDS / 4; i++) {
        const uint4 vector = load_vector<DTYPE, WIDE>(at + 16 * i);
        x.words[4 * i] = vector.x;
        x.words[4 * i + 1] = vector.y;
        x.words[4 * i + 2] = vector.z;
        x.words[4 * i + 3] = vector.w;
    }
}

/* silu(x) * up */
template <nk_dtype DTYPE> __device__ inline block<NK_F32> gated_block(const block<DTYPE> &x, const block<DTYPE> &up)
{
    block<NK_F32> product;
#pragma unroll
    for (int i = 0; i < NK_SF_VEC; i++)
        product.words[i] = __float_as_uint(__fmul_rn(nk_silu(element(x, i)), element(up, i)));
    return product;
}

#endif
