/* silu in fp32 operations that every backend has: additions, multiplications and one division. Each rounds to nearest
 * even, none is fused, denormals are kept. The order below is the contract: all backends get the same bits. The root of
 * softplus has a square root, too. */
#ifndef NK_MATH_H
#define NK_MATH_H

#include "nk_format.h"

#include <math.h>
#include <string.h>

NK_HD uint32_t nk_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

NK_HD float nk_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* 2^n, n in -126 .. 127 */
NK_HD float nk_power_of_two(int32_t n) { return nk_float_of_bits((uint32_t)(n + 127) << 23); }

/* x / (1 + exp(-x)), within 2 units in the last place where the result is normal; -0 for -infinity.
 *
 * exp(-x) = 2^n (1 + p) with n an integer and |p| < 0.42. For n > 0 numerator and denominator are multiplied by 2^-n:
 * so nothing overflows before the result underflows. */
NK_HD float nk_silu(float x)
{
    const float numerator = x < -128.0f ? -128.0f : x; /* silu(-128) is 0 already; NaN stays */
    const float t = numerator > 128.0f ? 128.0f : numerator;

    /* Adding 1.5 * 2^23 leaves the nearest integer in the last bits. For NaN n is any number, and the result is NaN. */
    const float shifter = 12582912.0f, shifted = t * -1.44269504f + shifter, k = shifted - shifter;
    const int32_t n = (int32_t)(nk_bits_of_float(shifted) - nk_bits_of_float(shifter));

    /* r = -t - k ln 2, with ln 2 as a sum of two numbers: k times the first is exact. p = exp(r) - 1. */
    const float r = (-t - k * 0.693359375f) - k * -2.12194440e-4f;
    float tail = 0x1.6db64cp-10f;
    tail = tail * r + 0x1.123ce0p-7f;
    tail = tail * r + 0x1.55545cp-5f;
    tail = tail * r + 0x1.55548cp-3f;
    tail = tail * r + 0.5f;
    const float p = (r * r) * tail + r;

    /* The denominator is 1 + (2^-n + p) for n > 0, else (1 + 2^n) + 2^n p. Its larger summands are added last, or
     * exactly. */
    const int32_t apart = n < 0 ? -n : n, beyond = n > 126 ? n - 126 : 0;
    const float small = nk_power_of_two(apart < 126 ? -apart : -126);
    const float denominator = (small + (n > 0 ? p : 1.0f)) + (n > 0 ? 1.0f : small * p);
    const float quotient = numerator / denominator;
    return (n > 0 ? quotient * small : quotient) * nk_power_of_two(-beyond); /* only the last multiplication rounds */
}

/* sqrt(log(1 + exp(x))), of x and exp(-|x| / 2), within 8 units of 2^-24 where the latter is within 4.
 *
 * log(1 + exp(x)) = max(x, 0) + log(1 + t) with t = exp(-|x|), and log(1 + t) = 2 artanh(s) with s = t / (2 + t). Far
 * below 0 the root is exp(x / 2): there t leaves fp32 before the root does. */
NK_HD float nk_sqrt_softplus(float x, float root_of_t)
{
    const float t = root_of_t * root_of_t, s = t / (2.0f + t), square = s * s, twice = s + s;
    float tail = 0x1.1ed7c2p-3f;
    tail = tail * square + 0x1.1ebd0cp-3f;
    tail = tail * square + 0x1.99d208p-3f;
    tail = tail * square + 0x1.555502p-2f;
    const float softplus = (x > 0 ? x : 0.0f) + (twice + twice * (square * tail)); /* NaN by t */
    return x < -17.0f ? root_of_t : sqrtf(softplus);
}

#endif
