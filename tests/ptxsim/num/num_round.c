/* Codes <-> values: the one place that knows how each format lays out its bits. */
#include "num_round.h"

#include <math.h>

const num_code_layout num_layouts[NUM_FORMATS] = {
    [NUM_F64] = {64, 52, 1023, SPECIALS_IEEE, 0x7FEFFFFFFFFFFFFF, 0x7FF8000000000000},
    [NUM_F32] = {32, 23, 127, SPECIALS_IEEE, 0x7F7FFFFF, 0x7FFFFFFF},
    [NUM_F16] = {16, 10, 15, SPECIALS_IEEE, 0x7BFF, 0x7FFF},
    [NUM_BF16] = {16, 7, 127, SPECIALS_IEEE, 0x7F7F, 0x7FFF},
    [NUM_E5M2] = {8, 2, 15, SPECIALS_IEEE, 0x7B, 0x7F},
    [NUM_E4M3] = {8, 3, 7, SPECIALS_NAN, 0x7E, 0x7F},
    [NUM_E2M1] = {4, 1, 1, SPECIALS_NONE, 0x7, 0x7},
};

int num_bits(num_format format) { return num_layouts[format].bits; }

static bool is_subnormal(num_format format, uint64_t x)
{
    const num_code_layout *f = &num_layouts[format];
    uint64_t magnitude = (x & num_mask(f->bits)) & ~num_sign_bit(format);
    return magnitude != 0 && magnitude >> f->mantissa == 0;
}

uint64_t num_flush(num_format format, uint64_t x) { return is_subnormal(format, x) ? x & num_sign_bit(format) : x; }

num_parts num_unpack(num_format format, uint64_t x)
{
    const num_code_layout *f = &num_layouts[format];
    uint64_t sign = x & num_sign_bit(format);
    uint64_t magnitude = (x & num_mask(f->bits)) ^ sign;
    int field = (int)(magnitude >> f->mantissa);
    bool leading = field != 0;
    return (num_parts){
        .negative = sign != 0,
        .special = magnitude > f->max_finite,
        .exponent = (leading ? field : 1) - f->bias,
        .significand = (magnitude & num_mask(f->mantissa)) | (uint64_t)leading << f->mantissa,
    };
}

double num_value(num_format format, uint64_t x)
{
    if (format == NUM_F64) return num_double(x);
    if (format == NUM_F32) return num_float((uint32_t)x);
    if (format == NUM_BF16) return num_float((uint32_t)x << 16);
    const num_code_layout *f = &num_layouts[format];
    uint64_t sign = x & num_sign_bit(format);
    uint64_t magnitude = (x & num_mask(f->bits)) ^ sign;
    if (num_is_nan(format, x)) return NAN;
    double value;
    if (f->special == SPECIALS_IEEE && magnitude > f->max_finite) {
        value = INFINITY;
    } else { /* as a double with the same exponent field, then the biases' difference */
        value = num_double(magnitude << (52 - f->mantissa)) * num_double((uint64_t)(2046 - f->bias) << 52);
    }
    return sign ? -value : value;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Rounding                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

static bool rounds_up(num_round round, bool negative, bool odd, uint64_t rest)
{
    const uint64_t half = UINT64_C(1) << 63;
    switch (round) {
    case NUM_RN:
        return rest > half || (rest == half && odd);
    case NUM_RNA:
        return rest >= half;
    case NUM_RM:
        return negative && rest;
    case NUM_RP:
        return !negative && rest;
    case NUM_RZ:
        break;
    }
    return false;
}

/* What a magnitude beyond max_finite becomes, without the sign. */
static uint64_t overflowed(const num_code_layout *f, bool negative, num_mode mode)
{
    bool away = mode.round == NUM_RN || mode.round == NUM_RNA || mode.round == (negative ? NUM_RM : NUM_RP);
    if (!away || mode.satfinite || f->special == SPECIALS_NONE) return f->max_finite;
    return f->max_finite + 1; /* infinity, or for e4m3 NaN */
}

/* sat and relu act on values, so before the sign meets the code; true: the result is *code. */
static bool clamped(num_format to, bool negative, bool above_one, num_mode mode, uint64_t *code)
{
    const num_code_layout *f = &num_layouts[to];
    *code = 0;
    if (negative && (mode.relu || mode.sat)) return true;
    *code = (uint64_t)f->bias << f->mantissa;
    return above_one && mode.sat;
}

static uint64_t zero_code(num_format to, bool negative, num_mode mode)
{
    return negative && !mode.relu && !mode.sat ? num_sign_bit(to) : 0;
}

uint64_t num_round_scaled(num_format to, bool negative, int exponent, uint64_t significand, num_mode mode)
{
    const num_code_layout *f = &num_layouts[to];
    if (significand == 0) return zero_code(to, negative, mode);
    int zeros = __builtin_clzll(significand);
    significand <<= zeros;
    exponent += 63 - zeros; /* now (1 <= significand / 2^63 < 2) * 2^exponent */
    uint64_t code;
    if (clamped(to, negative, exponent >= 0, mode, &code)) return code;

    int smallest = 1 - f->bias;
    int kept_bits = f->mantissa + 1 - (exponent < smallest ? smallest - exponent : 0);
    uint64_t kept, rest;
    if (kept_bits > 0) {
        kept = significand >> (64 - kept_bits);
        rest = significand << kept_bits;
    } else {
        kept = 0;
        rest = kept_bits == 0 ? significand : 1; /* below half a unit in the last place: only that it is not zero */
    }
    kept += rounds_up((num_round)mode.round, negative, kept & 1, rest);
    int field = exponent < smallest ? smallest : exponent;
    /* A carry out of the mantissa increments the exponent field by itself. */
    code = ((uint64_t)(field + f->bias - 1) << f->mantissa) + kept;
    if (field > f->bias + 1 || code > f->max_finite) { /* the former where the code's bits themselves overflow */
        code = overflowed(f, negative, mode);
    }
    if (mode.ftz && (to == NUM_F32 || to == NUM_F16)) code = num_flush(to, code);
    return code | (negative ? num_sign_bit(to) : 0);
}

uint64_t num_from_value(num_format to, double value, num_mode mode)
{
    const num_code_layout *f = &num_layouts[to];
    uint64_t bits = num_double_bits(value);
    bool negative = bits >> 63;
    int field = (int)(bits >> 52 & 0x7FF);
    uint64_t fraction = bits & num_mask(52);
    if (field < 0x7FF) {
        uint64_t leading = field ? UINT64_C(1) << 52 : 0;
        return num_round_scaled(to, negative, (field ? field : 1) - 1075, fraction | leading, mode);
    }
    if (fraction) return mode.sat ? 0 : f->nan; /* formats without NaN: the largest value, positive */
    uint64_t code;
    if (clamped(to, negative, true, mode, &code)) return code;
    mode.round = NUM_RN; /* infinity is not rounded */
    return overflowed(f, negative, mode) | (negative ? num_sign_bit(to) : 0);
}
