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

/* What the codes with the largest exponent mean. */
typedef enum {
    SPECIALS_IEEE, /* infinity and NaNs */
    SPECIALS_NAN,  /* one NaN, all ones */
    SPECIALS_NONE,
} num_specials;

/* How a format lays out its bits. */
typedef struct {
    uint8_t bits;
    uint8_t mantissa; /* stored bits of significand */
    int16_t bias;
    uint8_t special;
    uint64_t max_finite;
    uint64_t nan;
} num_code_layout;

extern const num_code_layout num_layouts[NUM_FORMATS];

static inline uint64_t num_nan(num_format format) { return num_layouts[format].nan; }

static inline uint64_t num_sign_bit(num_format format) { return UINT64_C(1) << (num_layouts[format].bits - 1); }

static inline bool num_is_nan(num_format format, uint64_t x)
{
    const num_code_layout *f = &num_layouts[format];
    uint64_t magnitude = (x & num_mask(f->bits)) & ~num_sign_bit(format);
    uint64_t infinity = f->max_finite + 1;
    return f->special == SPECIALS_IEEE ? magnitude > infinity : f->special == SPECIALS_NAN && magnitude == f->nan;
}

/* A subnormal becomes a zero of its sign. */
uint64_t num_flush(num_format format, uint64_t x);

/* num_value, with the common cases here. */
static inline double num_quick_value(num_format format, uint64_t x)
{
    if (format == NUM_F32) return num_float((uint32_t)x);
    if (format == NUM_BF16) return num_float((uint32_t)x << 16);
    const num_code_layout *f = &num_layouts[format];
    uint64_t sign = x & num_sign_bit(format), magnitude = (x & num_mask(f->bits)) ^ sign;
    bool normal = magnitude <= f->max_finite && magnitude >> f->mantissa;
    if (!normal || f->mantissa == 52) return num_value(format, x);
    uint64_t rebiased = (magnitude << (52 - f->mantissa)) + ((uint64_t)(1023 - f->bias) << 52);
    return num_double(rebiased | sign << (64 - f->bits));
}

/* num_from_value, with the common case here: to nearest, no clamps, an exponent of the format's normal numbers. */
static inline uint64_t num_quick_from_value(num_format to, double value, num_mode mode)
{
    const num_code_layout *f = &num_layouts[to];
    uint64_t bits = num_double_bits(value);
    int field = (int)(bits >> 52 & 0x7FF), shift = 52 - f->mantissa;
    bool normal = field > 1023 - f->bias && field <= 1024 + f->bias && f->mantissa < 52;
    if (normal && mode.round == NUM_RN && !mode.sat && !mode.relu) {
        uint64_t magnitude = (bits & num_mask(63)) - ((uint64_t)(1023 - f->bias) << 52);
        uint64_t code = (magnitude + num_mask(shift - 1) + (magnitude >> shift & 1)) >> shift;
        if (code <= f->max_finite) return code | (bits >> 63 ? num_sign_bit(to) : 0);
    }
    return num_from_value(to, value, mode);
}

/* A code taken apart: (-1)^negative * significand * 2^(exponent - mantissa bits); subnormals keep the format's smallest
 * exponent. `special`: infinity or NaN. */
typedef struct {
    bool negative, special;
    int exponent;
    uint64_t significand;
} num_parts;

num_parts num_unpack(num_format format, uint64_t x);

#endif
