/* What num_arith and num_convert do, eight values of f16 or bf16 at a time, for the commonest instructions: to nearest,
 * without modifiers. Computed in double, rounded to odd where that is inexact, and rounded once more to the format. */
#include "num_halves.h"

#include "num_lanes.h"
#include "num_round.h"

typedef uint16_t half_lanes __attribute__((vector_size(2 * LANES)));

/* What the loops need of a format. */
typedef struct {
    int32_t infinity, nan, sign;
    int shift;   /* from an f32's or a double's significand */
    int bias;    /* of doubles, less that of the format */
    double tiny; /* a double whose last bit is the smallest subnormal */
    bool is_bfloat;
} half_rules;

static half_rules rules_of(num_format format)
{
    const num_code_layout *f = &num_layouts[format];
    return (half_rules){
        .infinity = (int32_t)f->max_finite + 1,
        .nan = (int32_t)f->nan,
        .sign = 0x8000,
        .shift = 52 - f->mantissa,
        .bias = 1023 - f->bias,
        .tiny = num_double((uint64_t)(1023 + 1 - f->bias - f->mantissa + 52) << 52),
        .is_bfloat = format == NUM_BF16,
    };
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Codes to values and back                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

IN_LANES void load(const uint16_t *codes, lanes *out)
{
    half_lanes some;
    memcpy(&some, codes, sizeof some);
    *out = __builtin_convertvector(some, lanes);
}

IN_LANES void store(const lanes *codes, uint16_t *out)
{
    half_lanes some = __builtin_convertvector(*codes, half_lanes);
    memcpy(out, &some, sizeof some);
}

/* Exact; infinities and NaN of bf16 too, those of f16 become large numbers. */
IN_LANES void to_floats(const half_rules *f, const lanes *code, float_lanes *out)
{
    lanes magnitude = *code & 0x7FFF, sign = (lanes)((unsigned_lanes)*code << 16) & INT32_MIN;
    float_lanes rebased = (float_lanes)(magnitude << 13) * 0x1p112F;
    lanes bits = f->is_bfloat ? magnitude << 16 : (lanes)rebased;
    *out = (float_lanes)(bits | sign);
}

/* Of values that are no NaN, to nearest even. */
IN_LANES void round_doubles(const half_rules *f, const double_lanes *value, lanes *out)
{
    long_lanes bits = (long_lanes)*value, magnitude = bits & INT64_MAX, sign = bits >> 48 & f->sign;
    long_lanes rebased = magnitude - ((int64_t)f->bias << 52);
    long_lanes nearest = (rebased + ((INT64_C(1) << (f->shift - 1)) - 1) + (magnitude >> f->shift & 1)) >> f->shift;
    long_lanes too_large = nearest > f->infinity;
    nearest = (nearest & ~too_large) | (too_large & f->infinity);
    double_lanes padded = (double_lanes)magnitude + f->tiny;
    long_lanes small = (long_lanes)padded - (long_lanes)((double_lanes){0} + f->tiny);
    long_lanes subnormal = rebased < INT64_C(1) << 52;
    long_lanes code = (small & subnormal) | (nearest & ~subnormal) | sign;
    *out = __builtin_convertvector(code, lanes);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Arithmetic                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* a + b, of which the last bit is odd where it is inexact. */
IN_LANES void add_to_odd(const double_lanes *a, const double_lanes *b, double_lanes *out)
{
    double_lanes sum = *a + *b, b_part = sum - *a; /* Knuth's two-sum */
    double_lanes error = (*a - (sum - b_part)) + (*b - b_part);
    long_lanes bits = (long_lanes)sum, even = (bits & 1) - 1, inexact = error != 0;
    long_lanes inwards = ((long_lanes)error ^ bits) >> 63; /* -1: towards zero, else 0 */
    *out = (double_lanes)(bits + (inexact & even & (inwards * 2 + 1)));
}

IN_LANES void compute(const half_rules *f, num_op op, const lanes *a, const lanes *b, const lanes *c, lanes *out)
{
    float_lanes x, y, z;
    to_floats(f, a, &x), to_floats(f, b, &y), to_floats(f, c, &z);
    double_lanes p = __builtin_convertvector(x, double_lanes), q = __builtin_convertvector(y, double_lanes);
    double_lanes r = __builtin_convertvector(z, double_lanes), result;
    if (op == NUM_MUL)
        result = p * q;
    else if (op == NUM_ADD)
        add_to_odd(&p, &q, &result);
    else
        p *= q, add_to_odd(&p, &r, &result);
    round_doubles(f, &result, out);
}

/* Lanes with a NaN get NaN; those with an infinity go one by one. */
IN_LANES void arith(num_format format, num_op op, int n, const uint16_t *a, const uint16_t *b, const uint16_t *c,
                    uint16_t *out)
{
    half_rules f = rules_of(format);
    for (int i = 0; i < n; i += LANES) {
        lanes x, y, z = {0}, result;
        load(a + i, &x), load(b + i, &y);
        if (op == NUM_FMA) load(c + i, &z);
        if (op == NUM_SUB) y ^= f.sign;
        lanes p = x & 0x7FFF, q = y & 0x7FFF, r = z & 0x7FFF;
        lanes nan = (p > f.infinity) | (q > f.infinity) | (r > f.infinity);
        lanes infinite = ((p == f.infinity) | (q == f.infinity) | (r == f.infinity)) & ~nan;
        num_op without_sub = op == NUM_SUB ? NUM_ADD : op;
        compute(&f, without_sub, &x, &y, &z, &result);
        result = (result & ~nan) | (nan & f.nan);
        for (uint32_t left = num_bits_of(&infinite); left; left &= left - 1) {
            int j = __builtin_ctz(left);
            uint64_t operands[3] = {(uint64_t)x[j], (uint64_t)y[j], (uint64_t)z[j]};
            result[j] = (int32_t)num_arith(without_sub, format, operands[0], operands[1], operands[2], (num_mode){0});
        }
        store(&result, out + i);
    }
}

IN_LANES void widen(num_format format, int n, const uint16_t *x, uint32_t *out)
{
    half_rules f = rules_of(format);
    for (int i = 0; i < n; i += LANES) {
        lanes code;
        float_lanes value;
        load(x + i, &code);
        to_floats(&f, &code, &value);
        lanes bits = (lanes)value, magnitude = code & 0x7FFF;
        if (!f.is_bfloat) {
            lanes nan = magnitude > f.infinity, infinite = magnitude == f.infinity;
            bits = (bits & ~(nan | infinite)) | (nan & INT32_MAX) | (infinite & ((bits & INT32_MIN) | 0x7F800000));
        }
        memcpy(out + i, &bits, sizeof bits);
    }
}

IN_LANES void narrow(num_format format, int n, const uint32_t *x, uint16_t *out)
{
    half_rules f = rules_of(format);
    for (int i = 0; i < n; i += LANES) {
        lanes bits, code;
        memcpy(&bits, x + i, sizeof bits);
        double_lanes value = __builtin_convertvector((float_lanes)bits, double_lanes);
        lanes nan = (bits & INT32_MAX) > 0x7F800000;
        round_doubles(&f, &value, &code);
        code = (code & ~nan) | (nan & f.nan);
        store(&code, out + i);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* For any machine, and for AVX2                                                                                    */
/* ---------------------------------------------------------------------------------------------------------------- */

#define TWICE(name, parameters, call)                \
    static void name##_anywhere parameters { call; } \
    FOR_AVX2 static void name##_avx2 parameters { call; }

TWICE(arith,
      (num_format format, num_op op, int n, const uint16_t *a, const uint16_t *b, const uint16_t *c, uint16_t *out),
      arith(format, op, n, a, b, c, out))
TWICE(widen, (num_format format, int n, const uint16_t *x, uint32_t *out), widen(format, n, x, out))
TWICE(narrow, (num_format format, int n, const uint32_t *x, uint16_t *out), narrow(format, n, x, out))

static bool known(num_format format, num_mode mode)
{
    static const num_mode plain = {0};
    return (format == NUM_F16 || format == NUM_BF16) && memcmp(&mode, &plain, sizeof mode) == 0;
}

bool num_halves_arith(num_op op, num_format format, num_mode mode, int n, const uint16_t *a, const uint16_t *b,
                      const uint16_t *c, uint16_t *out)
{
    if (!known(format, mode) || op > NUM_FMA) return false;
    (num_has_avx2() ? arith_avx2 : arith_anywhere)(format, op, n, a, b, c, out);
    return true;
}

bool num_halves_to_f32(num_format format, num_mode mode, int n, const uint16_t *x, uint32_t *out)
{
    if (!known(format, mode)) return false;
    (num_has_avx2() ? widen_avx2 : widen_anywhere)(format, n, x, out);
    return true;
}

bool num_halves_from_f32(num_format format, num_mode mode, int n, const uint32_t *x, uint16_t *out)
{
    if (!known(format, mode)) return false;
    (num_has_avx2() ? narrow_avx2 : narrow_anywhere)(format, n, x, out);
    return true;
}
