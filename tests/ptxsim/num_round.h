/* Between the num_ files: codes, NaN and subnormals of a format. */
#ifndef PTXSIM_NUM_ROUND_H
#define PTXSIM_NUM_ROUND_H

#include "num_float.h"

#include <string.h>

static inline uint64_t num_mask(int bits) { return bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1; }

static inline double num_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t num_double_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float num_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t num_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A code taken apart: (-1)^negative * significand * 2^(exponent - num_mantissa_bits); subnormals keep the format's
 * smallest exponent. `special`: infinity or NaN. */
typedef struct {
    bool negative, special;
    int exponent;
    uint64_t significand;
} num_parts;

num_parts num_unpack(num_format format, uint64_t x);
int num_mantissa_bits(num_format format);
int num_bias(num_format format);
int num_unused_bits(num_format format);
/* The largest magnitude's code without the unused bits. */
uint64_t num_max_finite(num_format format);
uint64_t num_nan(num_format format);
uint64_t num_sign_bit(num_format format);
bool num_is_nan(num_format format, uint64_t x);
bool num_is_subnormal(num_format format, uint64_t x);
/* A subnormal becomes a zero of its sign. */
uint64_t num_flush(num_format format, uint64_t x);

#endif
