/* A block to codes and a scale byte by the recipe four_six: its largest magnitude becomes 6 or 4, whichever leaves the
 * smaller squared error. The order of the fp32 operations is the contract's. */
#ifndef NK_QUANTIZE_FOUR_SIX_CUH
#define NK_QUANTIZE_FOUR_SIX_CUH

#include "quantize_encode.cuh"

#define SCALED_UP 0x1p60f

typedef struct encoded_block {
    uint32_t sf, codes[2];
    float error;
} encoded_block;

/* What elements of a block are divided by. fl(x / step) takes no division: the first quotient is one of the two floats
 * around x / step, by an inverse of twice the bits. Then the remainder is exact, and a correction by fl(1/step) rounds
 * as a division does (Markstein). Both are scaled by a power of two, so that nothing is denormal that matters. */
typedef struct divisor {
    float power, step, inverse, inverse_rest, most; /* the inverse is `inverse` + `inverse_rest`; `most` is 6 step */
} divisor;

__device__ inline divisor divisor_of(float step)
{
    divisor d;
    d.power = step < 0x1p-60f ? SCALED_UP : step > 0x1p60f ? 1 / SCALED_UP : 1.0f;
    d.step = __fmul_rn(step, d.power);
    d.inverse = step > 0 ? __frcp_rn(d.step) : 0.0f; /* all quotients are 0 without a step */
    d.inverse_rest = __fmul_rn(__fmaf_rn(d.inverse, -d.step, 1.0f), d.inverse);
    d.most = __fmul_rn(d.step, NK_E2M1_MAX);
    return d;
}

/* fl(x / step), or about 6 where that is more. */
__device__ inline float quotient(float x, const divisor &d)
{
    const float some = fminf(__fmul_rn(x, d.power), d.most);
    const float first = __fmaf_rn(some, d.inverse, __fmul_rn(some, d.inverse_rest));
    return __fmaf_rn(__fmaf_rn(first, -d.step, some), d.inverse, first);
}

/* The squared error of element i; adds its code. See e2m1_magnitude. */
template <nk_dtype DTYPE>
__device__ inline float encode_element(const block<DTYPE> &x, int i, const divisor &d, float step, uint32_t codes[2])
{
    const float number = element(x, i), magnitude = fabsf(number), v = quotient(magnitude, d);
    const float e = __uint_as_float(__float_as_uint(fmaxf(v, 1.0f)) & INFINITY_BITS);
    const float sum = __fmaf_rn(e, 0x1p22f + 1, v), value = __fmaf_rn(e, -(0x1p22f + 1), sum);
    const uint32_t code = (__float_as_uint(sum) + (__float_as_uint(e) >> 22)) & 7;
    codes[i / 8] |= (code | (__float_as_uint(number) >> 28 & 8)) << i % 8 * 4;
    const float error = __fsub_rn(__fmul_rn(value, step), magnitude);
    return __fmul_rn(error, error);
}

/* The block, whose largest magnitude is `amax`, by which it becomes `target`. */
template <typename CONVERT, nk_dtype DTYPE>
__device__ inline encoded_block encode_to(float target, float s2, float smallest_scale, float amax,
                                          const block<DTYPE> &x)
{
    encoded_block b = {};
    const float whole = fminf(__fmul_rn(target, s2), FLT_MAX);
    b.sf = CONVERT::e4m3_of(fmaxf(__fdiv_rn(amax, whole), smallest_scale));
    const float step = fminf(__fmul_rn(__uint_as_float(b.sf << 20) * 0x1p120f, s2), FLT_MAX);
    const divisor d = divisor_of(step);
    float sums[NK_SF_VEC / 2];
#pragma unroll
    for (int k = 0; k < NK_SF_VEC / 2; k++) {
        const float even = encode_element(x, 2 * k, d, step, b.codes);
        sums[k] = __fadd_rn(even, encode_element(x, 2 * k + 1, d, step, b.codes));
    }
#pragma unroll
    for (int apart = NK_SF_VEC / 4; apart > 0; apart /= 2) {
#pragma unroll
        for (int k = 0; k < apart; k++)
            sums[k] = __fadd_rn(sums[k], sums[k + apart]);
    }
    b.error = sums[0];
    if (!(step > 0)) b.codes[0] = b.codes[1] = 0;
    return b;
}

template <typename CONVERT, nk_dtype DTYPE>
__device__ inline uint32_t encode_four_six(float s2, float smallest_scale, const block<DTYPE> &x, uint32_t codes[2])
{
    const uint32_t amax = amax_bits(x);
    codes[0] = codes[1] = 0;
    if (!(s2 > 0 && s2 <= FLT_MAX) || amax > INFINITY_BITS) return NK_E4M3_NAN;
    const encoded_block six = encode_to<CONVERT>(6, s2, smallest_scale, __uint_as_float(amax), x);
    const encoded_block four = encode_to<CONVERT>(4, s2, smallest_scale, __uint_as_float(amax), x);
    const bool is_four = four.error < six.error; /* false where one is NaN */
    codes[0] = is_four ? four.codes[0] : six.codes[0];
    codes[1] = is_four ? four.codes[1] : six.codes[1];
    return is_four ? four.sf : six.sf;
}

#endif
