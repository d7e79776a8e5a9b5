/* cvt: PTX ISA 9.7.9.21 and 6.5. */
#include "num_round.h"

#include <math.h>

static bool flushes(num_format format, num_mode mode) { return mode.ftz && format == NUM_F32; }

uint64_t num_convert(num_format to, num_format from, uint64_t x, num_mode mode)
{
    if (mode.ftz && from == NUM_F32) x = num_flush(from, x);
    if (to == NUM_F32 && from == NUM_BF16 && !mode.sat) { /* a shift, NaN or not */
        uint64_t wide = (x & 0xFFFF) << 16;
        return mode.ftz ? num_flush(NUM_F32, wide) : wide;
    }
    if (num_is_nan(from, x) && to == from && !mode.sat && !mode.relu) return x & num_mask(num_bits(to));
    if (to != NUM_F32) mode.ftz = false; /* .ftz speaks of f32 alone here */
    return num_quick_from_value(to, num_quick_value(from, x), mode);
}

static double integral(double value, num_round direction)
{
    switch (direction) {
    case NUM_RN:
        return nearbyint(value); /* in the default environment: ties to even */
    case NUM_RZ:
        return trunc(value);
    case NUM_RM:
        return floor(value);
    case NUM_RP:
        return ceil(value);
    case NUM_RNA:
        return round(value);
    }
    return value;
}

uint64_t num_to_integral(num_format format, uint64_t x, num_mode mode)
{
    if (flushes(format, mode)) x = num_flush(format, x);
    double value = integral(num_value(format, x), (num_round)mode.round);
    mode.round = NUM_RN;
    return num_from_value(format, value, mode);
}

uint64_t num_to_integer(int bits, bool is_signed, num_format from, uint64_t x, num_mode mode)
{
    if (flushes(from, mode)) x = num_flush(from, x);
    double value = integral(num_value(from, x), (num_round)mode.round);
    if (isnan(value)) return bits == 64 ? UINT64_C(1) << 63 : 0;
    double beyond = ldexp(1, is_signed ? bits - 1 : bits); /* the first that does not fit */
    uint64_t largest = num_mask(is_signed ? bits - 1 : bits);
    if (value >= beyond) return largest;
    if (!is_signed) return value <= 0 ? 0 : (uint64_t)value;
    return value < -beyond ? ~largest : (uint64_t)(int64_t)value;
}

uint64_t num_from_integer(num_format to, bool is_signed, uint64_t x, num_mode mode)
{
    bool negative = is_signed && x >> 63;
    return num_round_scaled(to, negative, 0, negative ? -x : x, mode);
}

uint64_t num_integer_to_integer(int bits, bool is_signed, bool sat, bool from_signed, uint64_t x)
{
    uint64_t largest = num_mask(is_signed ? bits - 1 : bits);
    if (sat && from_signed && (int64_t)x < 0) {
        int64_t smallest = is_signed ? (int64_t)~largest : 0;
        if ((int64_t)x < smallest) return (uint64_t)smallest;
    } else if (sat && x > largest) {
        return largest;
    }
    uint64_t chopped = x & num_mask(bits);
    bool extends = is_signed && chopped >> (bits - 1);
    return extends ? chopped | ~num_mask(bits) : chopped;
}

uint32_t num_convert_to_pair(num_format to, num_format from, uint64_t a, uint64_t b, num_mode mode)
{
    uint64_t upper = num_convert(to, from, a, mode), lower = num_convert(to, from, b, mode);
    return (uint32_t)(upper << num_bits(to) | lower);
}

uint32_t num_convert_pair(num_format to, num_format from, uint32_t pair, num_mode mode)
{
    uint64_t lane = num_mask(num_bits(from));
    return num_convert_to_pair(to, from, pair >> num_bits(from) & lane, pair & lane, mode);
}
