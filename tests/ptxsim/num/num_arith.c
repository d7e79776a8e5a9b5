/* Arithmetic and comparison: PTX ISA 9.7.3, 9.7.4, 9.7.6.
 *
 * f32, f16 and bf16 are computed in double, rounded to odd (an inexact result gets an odd last bit), and rounded once
 * more to the format: with 53 bits against 24 that equals one rounding of the exact result, in every mode. */
#include "num_round.h"

#include <math.h>

/* ---------------------------------------------------------------------------------------------------------------- */
/* Doubles that remember that they are inexact                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

/* `value` is the exact result rounded to nearest, `error` has the sign of exact - value. */
static double to_odd(double value, double error)
{
    uint64_t bits = num_double_bits(value);
    if (error == 0 || bits & 1) return value;
    bool outwards = (error > 0) == (value > 0);
    return num_double(outwards ? bits + 1 : bits - 1);
}

static double add_to_odd(double a, double b, num_round round)
{
    double sum = a + b;
    if (sum == 0 && round == NUM_RM && (signbit(a) || signbit(b))) return -0.0; /* x - x towards minus infinity */
    if (!isfinite(sum)) return sum;
    double b_part = sum - a; /* Knuth's two-sum */
    double error = (a - (sum - b_part)) + (b - b_part);
    return to_odd(sum, error);
}

static double div_to_odd(double a, double b)
{
    double quotient = a / b;
    if (!isfinite(quotient) || quotient == 0 || isinf(b)) return quotient;
    double remainder = fma(-quotient, b, a); /* exact */
    return to_odd(quotient, signbit(b) ? -remainder : remainder);
}

static double sqrt_to_odd(double a)
{
    double root = sqrt(a);
    if (!isfinite(root) || root == 0) return root;
    return to_odd(root, fma(-root, root, a));
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Operations                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

static double exact_or_odd(num_op op, double a, double b, double c, num_round round)
{
    switch (op) {
    case NUM_ADD:
        return add_to_odd(a, b, round);
    case NUM_SUB:
        return add_to_odd(a, -b, round);
    case NUM_MUL:
        return a * b; /* 24 + 24 bits */
    case NUM_FMA:
        return add_to_odd(a * b, c, round);
    case NUM_DIV:
        return div_to_odd(a, b);
    case NUM_SQRT:
        return sqrt_to_odd(a);
    default:
        return div_to_odd(1, a);
    }
}

/* The argument is an f32 or narrower, so exp2 and its like are far more exact than the rounding that follows. */
static double approximated(num_op op, double a, double b)
{
    switch (op) {
    case NUM_DIV_APPROX:
        if (fabs(b) > 0x1p126 && !isinf(b)) return isinf(a) ? NAN : copysign(0, signbit(a) == signbit(b) ? 1 : -1);
        return a / b;
    case NUM_RSQRT:
        return a == 0 ? copysign(INFINITY, a) : 1 / sqrt(a);
    case NUM_EX2:
        return exp2(a);
    case NUM_LG2:
        return a == 0 ? -INFINITY : log2(a);
    default:
        return tanh(a);
    }
}

static uint64_t choose(num_op op, num_format format, uint64_t a, uint64_t b, num_mode mode)
{
    uint64_t sign = num_sign_bit(format);
    bool nan_a = num_is_nan(format, a), nan_b = num_is_nan(format, b);
    if ((nan_a && nan_b) || (mode.nan && (nan_a || nan_b))) return num_nan(format);
    if (nan_a || nan_b) return nan_a ? b : a;
    double x = num_value(format, a), y = num_value(format, b);
    bool a_is_less = x < y || (x == y && (a & sign));
    return a_is_less == (op == NUM_MIN) ? a : b;
}

/* The commonest instructions, in the host's own f32. */
static bool f32_fast(num_op op, uint32_t a, uint32_t b, uint32_t c, uint32_t *d)
{
    float x = num_float(a), y = num_float(b), result;
    if (op == NUM_FMA) {
        result = fmaf(x, y, num_float(c));
    } else if (op == NUM_MUL) {
        result = x * y;
    } else if (op == NUM_ADD) {
        result = x + y;
    } else if (op == NUM_SUB) {
        result = x - y;
    } else {
        return false;
    }
    *d = isnan(result) ? UINT32_C(0x7FFFFFFF) : num_float_bits(result);
    return true;
}

static bool f32_is_plain(num_format format, num_mode mode)
{
    return format == NUM_F32 && mode.round == NUM_RN && !mode.ftz && !mode.sat && !mode.relu;
}

uint64_t num_arith(num_op op, num_format format, uint64_t a, uint64_t b, uint64_t c, num_mode mode)
{
    uint32_t fast;
    if (f32_is_plain(format, mode) && f32_fast(op, (uint32_t)a, (uint32_t)b, (uint32_t)c, &fast)) return fast;
    uint64_t mask = num_mask(num_bits(format)), sign = num_sign_bit(format);
    a &= mask, b &= mask, c &= mask;
    if (mode.ftz) a = num_flush(format, a), b = num_flush(format, b), c = num_flush(format, c);
    if (op == NUM_MIN || op == NUM_MAX) return choose(op, format, a, b, mode);
    if (op == NUM_ABS) return a & ~sign;
    if (op == NUM_NEG) return a ^ sign;
    if (op == NUM_COPYSIGN) return (a & sign) | (b & ~sign);
    double x = num_quick_value(format, a), y = num_quick_value(format, b);
    double z = op == NUM_FMA ? num_quick_value(format, c) : 0;
    if (op >= NUM_DIV_APPROX) {
        mode.round = NUM_RN;
        return num_from_value(format, approximated(op, x, y), mode);
    }
    return num_quick_from_value(format, exact_or_odd(op, x, y, z, (num_round)mode.round), mode);
}

uint64_t num_arith_pair(num_op op, num_format format, uint64_t a, uint64_t b, uint64_t c, num_mode mode)
{
    int shift = num_bits(format);
    uint64_t mask = num_mask(shift);
    uint64_t lower = num_arith(op, format, a & mask, b & mask, c & mask, mode);
    return lower | num_arith(op, format, a >> shift & mask, b >> shift & mask, c >> shift & mask, mode) << shift;
}
