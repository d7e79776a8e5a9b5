/* A block to codes and a scale byte by the recipe four_six: its largest magnitude becomes 6 or 4, whichever leaves the
 * smaller squared error. The order of the fp32 operations is the contract's. */
#ifndef NK_QUANTIZE_FOUR_SIX_CUH
#define NK_QUANTIZE_FOUR_SIX_CUH

#include "quantize_encode.cuh"

#define SCALED_UP 0x1p60f

/* fl(x / divisor) takes no division: an inverse of twice the bits is `inverse` + `inverse_rest`. */
typedef struct inverse_pair {
    float inverse, rest;
} inverse_pair;

__device__ inline inverse_pair inverse_of(float divisor)
{
    const float inverse = divisor > 0 ? __frcp_rn(divisor) : 0.0f; /* all quotients are 0 without a divisor */
    return {inverse, __fmul_rn(__fmaf_rn(inverse, -divisor, 1.0f), inverse)};
}

/* One of the two floats around x / divisor. Near a tie of E2M1 or of E4M3 it is fl(x / divisor), unless the divisor's
 * mantissa is of ones alone: tests/cpu/quotients.c. */
__device__ inline float near_quotient(float x, const inverse_pair &d)
{
    return __fmaf_rn(x, d.inverse, __fmul_rn(x, d.rest));
}

/* fl(x / divisor): the remainder is exact, and a correction by fl(1/divisor) rounds as a division does (Markstein). */
__device__ inline float quotient(float x, float divisor, const inverse_pair &d)
{
    const float first = near_quotient(x, d);
    return __fmaf_rn(__fmaf_rn(first, -divisor, x), d.inverse, first);
}

/* What all blocks of a global scale have in common. By `most` or more the scale factor is the largest. */
typedef struct four_six_encoder {
    float s2, most;
    bool usual; /* near_quotient is for whatever blocks are divided by, and nothing is denormal that matters */
    inverse_pair six, four;
} four_six_encoder;

/* What becomes scale factor 1 where the largest magnitude becomes `target`. */
__device__ inline float whole_of(float target, float s2) { return fminf(__fmul_rn(target, s2), FLT_MAX); }

__device__ inline four_six_encoder four_six_encoder_of(float s2)
{
    const float six = whole_of(6, s2), four = whole_of(4, s2);
    bool usual = s2 > 0x1p-50f && s2 < 0x1p50f;
#pragma unroll
    for (int mantissa = 8; mantissa < 16; mantissa++) /* of a scale factor; 6 and 4 have two of them */
        usual &= (~__float_as_uint(__fmul_rn((float)mantissa, s2)) & 0x7FFFFF) != 0;
    return {s2, 1024 * four, usual, inverse_of(six), inverse_of(four)};
}

/* Codes without signs, and the squared error. */
typedef struct encoded_block {
    uint32_t codes[2];
    float error;
} encoded_block;

/* The squared error of a magnitude, by its quotient v; *code has the code in the lowest byte. See e2m1_magnitude. */
__device__ inline float squared_error(float magnitude, float v, float step, uint32_t *code)
{
    const float e = __uint_as_float(__float_as_uint(fmaxf(v, 1.0f)) & INFINITY_BITS);
    const float sum = __fmaf_rn(e, 0x1p22f + 1, v), value = __fmaf_rn(e, -(0x1p22f + 1), sum);
    *code = __float_as_uint(sum) + (__float_as_uint(e) >> 22);
    const float error = __fsub_rn(__fmul_rn(value, step), magnitude);
    return __fmul_rn(error, error);
}

/* The block by a step. USUAL: that of a usual encoder, by which no quotient reaches 7, where codes end. Else both are
 * scaled by a power of two, so that nothing is denormal that matters. */
template <bool USUAL, nk_dtype DTYPE> __device__ inline encoded_block encode_by(float step, const block<DTYPE> &x)
{
    const float power = USUAL ? 1.0f : step < 1 / SCALED_UP ? SCALED_UP : step > SCALED_UP ? 1 / SCALED_UP : 1.0f;
    const float scaled = __fmul_rn(step, power), most = __fmul_rn(scaled, NK_E2M1_MAX);
    const inverse_pair d = inverse_of(scaled);
    encoded_block b;
    float sums[NK_SF_VEC / 2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t codes[8];
        float errors[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float magnitude = fabsf(element(x, 8 * half + i));
            const float v =
                USUAL ? near_quotient(magnitude, d) : quotient(fminf(__fmul_rn(magnitude, power), most), scaled, d);
            errors[i] = squared_error(magnitude, v, step, &codes[i]);
        }
        b.codes[half] = codes_of_bytes(codes);
#pragma unroll
        for (int k = 0; k < 4; k++)
            sums[4 * half + k] = __fadd_rn(errors[2 * k], errors[2 * k + 1]);
    }
#pragma unroll
    for (int apart = NK_SF_VEC / 4; apart > 0; apart /= 2) {
#pragma unroll
        for (int k = 0; k < apart; k++)
            sums[k] = __fadd_rn(sums[k], sums[k + apart]);
    }
    b.error = sums[0];
    return b;
}

/* The scale factor by which a block's largest magnitude becomes `target`, and the step. */
template <typename CONVERT>
__device__ inline uint32_t sf_and_step(const four_six_encoder &e, float target, const inverse_pair &of_whole,
                                       float amax, float smallest_scale, float *step)
{
    const float wanted =
        e.usual ? near_quotient(fminf(amax, e.most), of_whole) : __fdiv_rn(amax, whole_of(target, e.s2));
    const uint32_t sf = CONVERT::e4m3_of(fmaxf(wanted, smallest_scale));
    *step = fminf(__fmul_rn(__uint_as_float(sf << 20) * 0x1p120f, e.s2), FLT_MAX);
    return sf;
}

template <typename CONVERT, nk_dtype DTYPE>
__device__ inline uint32_t encode_four_six(const four_six_encoder &e, float smallest_scale, const block<DTYPE> &x,
                                           uint32_t codes[2])
{
    const uint32_t bits = amax_bits(x);
    codes[0] = codes[1] = 0;
    if (!(e.s2 > 0 && e.s2 <= FLT_MAX) || bits > INFINITY_BITS) return NK_E4M3_NAN;
    const float amax = __uint_as_float(bits);
    float to_six, to_four;
    const uint32_t sf_six = sf_and_step<CONVERT>(e, 6, e.six, amax, smallest_scale, &to_six);
    const uint32_t sf_four = sf_and_step<CONVERT>(e, 4, e.four, amax, smallest_scale, &to_four);
    encoded_block six, four = {};
    if (e.usual && to_six > 0 && amax <= 6.5f * to_six) { /* to_four is not less */
        six = encode_by<true>(to_six, x);
        four = encode_by<true>(to_four, x);
    } else {
#pragma unroll 1 /* for fewer registers */
        for (int t = 0; t < 2; t++) {
            six = four;
            four = encode_by<false>(t ? to_four : to_six, x);
        }
    }
    const bool is_four = four.error < six.error; /* false where one is NaN */
    if ((is_four ? to_four : to_six) > 0) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            codes[half] = (is_four ? four.codes[half] : six.codes[half]) + code_signs(x, half);
    }
    return is_four ? sf_four : sf_six;
}

#endif
