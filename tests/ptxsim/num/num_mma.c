/* The accumulation model. Eight columns at a time in loops of constant length, which compilers turn into vectors.
 *
 * Operands are floats next to the exponents that the alignment goes by. A product of two is exact; scaled so that the
 * last bit kept counts ones, its conversion to an integer is the alignment with its truncation. What floats cannot
 * hold (sums near the ends of the exponents' range) and infinities and NaN are taken element by element. */
#include "num_mma.h"

#include "num_lanes.h"
#include "num_round.h"

#include <stddef.h>

static const num_mma_model MODELS[] = {
    {80, 8, 16, 24, 24, 23, -132, 0},    {89, 8, 16, 24, 13, 13, -132, 0},    {90, 16, 32, 25, 13, 13, -133, 0},
    {100, 16, 32, 25, 25, 23, -133, 35}, {120, 16, 32, 25, 25, 23, -133, 35}, {121, 16, 32, 25, 25, 23, -133, 35},
};

const num_mma_model *num_mma_model_of(int arch)
{
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        if (MODELS[i].arch == arch) return &MODELS[i];
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Operands                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

enum { NO_EXPONENT = -8192 };                       /* a zero: never the largest exponent */
enum { LEAST_EXPONENT = -90, MOST_EXPONENT = 100 }; /* of a sum's parts, so that scaled floats stay normal */
enum { COLUMNS = LANES };

#define UNROLLED _Pragma("GCC unroll 16")

/* A format's fields, at hand for a loop. Shifted to an f32's place, a magnitude is a float of another bias. */
typedef struct {
    int32_t mantissa, bias, shift, sign_shift;
    int32_t magnitude;            /* the bits of one */
    int32_t max_finite, infinity; /* infinity: -1 where there is none */
    float rebias;
} decoder;

static const decoder F32 = {23, 127, 0, 0, 0x7FFFFFFF, 0x7F7FFFFF, 0x7F800000, 1};

static decoder decoder_of(num_format format)
{
    const num_code_layout *f = &num_layouts[format];
    int32_t sign = 1 << (f->bits - 2) << 1;
    return (decoder){
        .mantissa = f->mantissa,
        .bias = f->bias,
        .shift = 23 - f->mantissa,
        .sign_shift = 32 - f->bits,
        .magnitude = (int32_t)((uint32_t)sign - 1),
        .max_finite = (int32_t)f->max_finite,
        .infinity = f->special == SPECIALS_IEEE ? (int32_t)(f->max_finite + 1) : -1,
        .rebias = num_float((uint32_t)(127 - f->bias + 127) << 23),
    };
}

/* `special`: -1 for what is no number, whose value means nothing. */
typedef struct {
    float_lanes value;
    lanes exponent, special;
} lanes_of_numbers;

IN_LANES void decode(const decoder *f, const uint32_t *codes, lanes_of_numbers *out)
{
    lanes code;
    memcpy(&code, codes, sizeof code);
    lanes magnitude = code & f->magnitude, zero = magnitude == 0, field = magnitude >> f->mantissa;
    lanes sign = (lanes)((unsigned_lanes)code << f->sign_shift) & INT32_MIN;
    lanes value = (lanes)((float_lanes)(magnitude << f->shift) * f->rebias);
    out->value = (float_lanes)(value | sign);
    lanes exponent = LARGER(field, ALL_LANES(1)) - f->bias;
    out->exponent = (exponent & ~zero) | (zero & NO_EXPONENT);
    out->special = magnitude > f->max_finite;
}

/* Steps, a bit each, in which an operand has what is no number. */
typedef struct {
    float value[NUM_MMA_MAX_K];
    int32_t exponent[NUM_MMA_MAX_K];
    uint32_t infinite, nan;
} row_of_a;

typedef struct {
    float_lanes value[NUM_MMA_MAX_K];
    lanes exponent[NUM_MMA_MAX_K];
    uint32_t special; /* a bit for each column with anything; 0: no more is said */
    uint32_t infinite[COLUMNS], nan[COLUMNS];
} columns_of_b;

typedef struct {
    num_format a_format, b_format;
    int m, n, k;
    const uint32_t *a, *b; /* codes */
} operands;

/* What a step needs to know of the instruction. */
typedef struct {
    int products;      /* a step */
    int fraction_bits; /* kept when aligning */
    int min_exponent;
    int result_bits; /* fraction bits of the result; 23: an f32 with all its bits */
    bool narrow_sum; /* all aligned parts together stay below 2^31 */
    decoder a, b;
} step_rules;

static bool is_narrow(num_format format) { return num_bits(format) <= 8; }

static step_rules rules_of(const num_mma_model *model, num_format a, num_format b, int k)
{
    bool narrow = is_narrow(a);
    int step = narrow ? model->step_8 : model->step_16;
    int fraction_bits = narrow ? model->fraction_bits_8 : model->fraction_bits;
    return (step_rules){
        .products = step < k ? step : k,
        .fraction_bits = fraction_bits,
        .min_exponent = model->min_exponent,
        .result_bits = narrow ? model->result_bits_8 : 23,
        .narrow_sum = (int64_t)(step + 1) << (fraction_bits + 2) < INT64_C(1) << 31,
        .a = decoder_of(a),
        .b = decoder_of(b),
    };
}

/* Of the lanes in `special` at element k. */
static void note_special(const step_rules *rules, const decoder *f, uint32_t code, int k, uint32_t *infinite,
                         uint32_t *nan)
{
    bool is_infinite = ((int32_t)code & f->magnitude) == f->infinity;
    *(is_infinite ? infinite : nan) |= 1U << k / rules->products;
}

IN_LANES void load_row(const step_rules *rules, const operands *o, int m, row_of_a *row)
{
    const uint32_t *codes = o->a + m * o->k;
    row->infinite = row->nan = 0;
    for (int k = 0; k < o->k; k += LANES) {
        uint32_t some[LANES] = {0};
        if (o->k - k < LANES)
            memcpy(some, codes + k, LANES / 2 * sizeof *some);
        else
            memcpy(some, codes + k, sizeof some);
        lanes_of_numbers x;
        decode(&rules->a, some, &x);
        memcpy(row->value + k, &x.value, sizeof x.value);
        memcpy(row->exponent + k, &x.exponent, sizeof x.exponent);
        for (uint32_t left = num_bits_of(&x.special); left; left &= left - 1) {
            int j = __builtin_ctz(left);
            note_special(rules, &rules->a, some[j], k + j, &row->infinite, &row->nan);
            row->value[k + j] = 0;
        }
    }
}

IN_LANES void load_columns(const step_rules *rules, const operands *o, int n0, columns_of_b *b)
{
    b->special = 0;
    for (int k = 0; k < o->k; k++) {
        uint32_t codes[COLUMNS];
        for (int j = 0; j < COLUMNS; j++)
            codes[j] = o->b[(n0 + j) * o->k + k];
        lanes_of_numbers x;
        decode(&rules->b, codes, &x);
        b->value[k] = x.value;
        b->exponent[k] = x.exponent;
        uint32_t special = num_bits_of(&x.special);
        if (special && !b->special) {
            memset(b->infinite, 0, sizeof b->infinite);
            memset(b->nan, 0, sizeof b->nan);
        }
        b->special |= special;
        for (; special; special &= special - 1) {
            int j = __builtin_ctz(special);
            note_special(rules, &rules->b, codes[j], k, &b->infinite[j], &b->nan[j]);
            b->value[k][j] = 0;
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* One step of one element                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* sum * 2^(exponent - fraction_bits) as a code of the accumulator. */
static uint32_t rounded(const step_rules *rules, int64_t sum, int exponent)
{
    uint64_t magnitude = (uint64_t)(sum < 0 ? -sum : sum);
    if (magnitude == 0) return 0;
    int scale = exponent - rules->fraction_bits, leading = 63 - __builtin_clzll(magnitude);
    if (leading + scale > 127) return sum < 0 ? 0xFF800000 : 0x7F800000;
    int dropped = leading - rules->result_bits;
    if (rules->result_bits < 23 && dropped > 0) magnitude &= ~num_mask(dropped);
    return (uint32_t)num_round_scaled(NUM_F32, sum < 0, scale, magnitude, (num_mode){.round = NUM_RZ});
}

/* Something is an infinity, so the sum is one or NaN: a sum of doubles says which. */
static uint32_t special_sum(const step_rules *rules, const operands *o, int m, int n, int first, uint32_t c)
{
    double sum = num_value(NUM_F32, c);
    for (int k = first; k < first + rules->products; k++)
        sum += num_value(o->a_format, o->a[m * o->k + k]) * num_value(o->b_format, o->b[n * o->k + k]);
    return (uint32_t)num_from_value(NUM_F32, sum, (num_mode){0});
}

/* A significand and its exponent: value * 2^(exponent - mantissa bits). */
typedef struct {
    int64_t significand;
    int exponent;
} number;

static number number_of(num_format format, uint32_t code)
{
    num_parts parts = num_unpack(format, code);
    int64_t significand = (int64_t)parts.significand;
    return (number){parts.negative ? -significand : significand, significand ? parts.exponent : NO_EXPONENT};
}

/* Towards zero, with `rules->fraction_bits` kept of the largest exponent. */
static int64_t aligned(const step_rules *rules, int64_t value, int mantissa, int exponent, int largest)
{
    int left = rules->fraction_bits - mantissa - (largest - exponent);
    int64_t magnitude = value < 0 ? -value : value;
    magnitude = left >= 0 ? magnitude << left : left > -63 ? magnitude >> -left : 0;
    return value < 0 ? -magnitude : magnitude;
}

/* With exponents of any size. */
static uint32_t wide_step(const step_rules *rules, const operands *o, int m, int n, int first, uint32_t d)
{
    number c = number_of(NUM_F32, d), products[NUM_MMA_MAX_K];
    int largest = c.exponent > rules->min_exponent ? c.exponent : rules->min_exponent;
    for (int k = 0; k < rules->products; k++) {
        number a = number_of(o->a_format, o->a[m * o->k + first + k]);
        number b = number_of(o->b_format, o->b[n * o->k + first + k]);
        products[k] = (number){a.significand * b.significand, a.exponent + b.exponent};
        if (products[k].exponent > largest) largest = products[k].exponent;
    }
    int64_t sum = aligned(rules, c.significand, num_layouts[NUM_F32].mantissa, c.exponent, largest);
    int mantissa = num_layouts[o->a_format].mantissa + num_layouts[o->b_format].mantissa;
    for (int k = 0; k < rules->products; k++)
        sum += aligned(rules, products[k].significand, mantissa, products[k].exponent, largest);
    return rounded(rules, sum, largest);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* One step of eight elements                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

IN_LANES void add_scaled(const float_lanes *value, const float_lanes *scale, lanes *sum)
{
    *sum += __builtin_convertvector(*value * *scale, lanes);
}

/* What loops are compiled for; `products` 0: any number, and any bits of the result. */
typedef struct {
    int products;
    bool narrow_sum;
} shape;

/* `outside`: lanes with exponents that floats cannot scale, whose result means nothing. */
IN_LANES void step_lanes(const step_rules *rules, shape known, const row_of_a *a, const columns_of_b *b, int first,
                         const lanes_of_numbers *c, uint32_t *d, lanes *outside)
{
    int products = known.products ? known.products : rules->products;
    bool narrow_sum = known.products ? known.narrow_sum : rules->narrow_sum;
    const float_lanes *b_value = b->value + first;
    const lanes *b_exponent = b->exponent + first;
    const float *a_value = a->value + first;
    const int32_t *a_exponent = a->exponent + first;
    lanes top = c->exponent;
    UNROLLED
    for (int k = 0; k < products; k++) {
        lanes exponent = b_exponent[k] + a_exponent[k];
        top = LARGER(exponent, top);
    }
    *outside = ((top <= LEAST_EXPONENT) & (top > NO_EXPONENT / 2)) | (top >= MOST_EXPONENT);
    int least = rules->min_exponent > LEAST_EXPONENT ? rules->min_exponent : LEAST_EXPONENT;
    lanes largest = LARGER(top, ALL_LANES(least));
    largest = SMALLER(largest, ALL_LANES(MOST_EXPONENT));
    float_lanes scale = (float_lanes)((rules->fraction_bits + 127 - largest) << 23);
    lanes even = {0}, odd = {0}, rest = {0};
    UNROLLED
    for (int k = 0; k < products; k += 2) {
        float_lanes product = b_value[k] * a_value[k], next = b_value[k + 1] * a_value[k + 1];
        add_scaled(&product, &scale, &even);
        add_scaled(&next, &scale, &odd);
    }
    add_scaled(&c->value, &scale, &rest);
    if (narrow_sum) even += odd + rest;
    double_lanes sum = __builtin_convertvector(even, double_lanes);
    if (!narrow_sum) sum += __builtin_convertvector(odd, double_lanes) + __builtin_convertvector(rest, double_lanes);
    if (known.products || rules->result_bits == 23) {
        num_doubles_to_f32(&sum, &largest, rules->fraction_bits, d);
        return;
    }
    for (int j = 0; j < LANES; j++)
        d[j] = rounded(rules, (int64_t)sum[j], largest[j]);
}

/* Lanes in which something is no number or is out of the floats' range. */
static void correct(const step_rules *rules, const operands *o, int m, int n, int first, uint32_t nan,
                    uint32_t infinite, uint32_t outside, const uint32_t *c, uint32_t *d)
{
    for (uint32_t left = nan | infinite | outside; left; left &= left - 1) {
        int j = __builtin_ctz(left);
        if (nan >> j & 1)
            d[j] = (uint32_t)num_nan(NUM_F32);
        else if (infinite >> j & 1)
            d[j] = special_sum(rules, o, m, n + j, first, c[j]);
        else
            d[j] = wide_step(rules, o, m, n + j, first, c[j]);
    }
}

/* Eight elements of a row of D. */
IN_LANES void accumulate_lanes(const step_rules *rules, shape known, const operands *o, const row_of_a *a,
                               const columns_of_b *b, int m, int n, uint32_t *d)
{
    for (int first = 0, step = 0; first < o->k; first += rules->products, step++) {
        if (a->nan >> step & 1) {
            for (int j = 0; j < LANES; j++)
                d[j] = (uint32_t)num_nan(NUM_F32);
            continue;
        }
        lanes_of_numbers c;
        lanes outside;
        uint32_t before[LANES];
        memcpy(before, d, sizeof before);
        decode(&F32, before, &c);
        c.value = (float_lanes)((lanes)c.value & ~c.special);
        step_lanes(rules, known, a, b, first, &c, d, &outside);
        lanes unusual = outside | c.special;
        bool infinite_row = a->infinite >> step & 1;
        if (!infinite_row && !b->special && !num_bits_of(&unusual)) continue;
        uint32_t nan = 0, infinite = infinite_row ? (1U << LANES) - 1 : num_bits_of(&c.special);
        for (int j = 0; j < LANES; j++) {
            if (num_is_nan(NUM_F32, before[j])) nan |= 1U << j;
            if (!b->special) continue;
            nan |= (b->nan[j] >> step & 1) << j;
            infinite |= (b->infinite[j] >> step & 1) << j;
        }
        correct(rules, o, m, n, first, nan, infinite, num_bits_of(&outside), before, d);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* A whole instruction                                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

IN_LANES void accumulate(const step_rules *rules, shape known, const operands *o, uint32_t *d)
{
    row_of_a rows[NUM_MMA_MAX_M];
    for (int m = 0; m < o->m; m++)
        load_row(rules, o, m, &rows[m]);
    for (int n = 0; n < o->n; n += LANES) {
        columns_of_b b;
        load_columns(rules, o, n, &b);
        for (int m = 0; m < o->m; m++)
            accumulate_lanes(rules, known, o, &rows[m], &b, m, n, d + m * o->n + n);
    }
}

static void accumulate_anywhere(const step_rules *rules, const operands *o, uint32_t *d)
{
    accumulate(rules, (shape){0}, o, d);
}

FOR_AVX2 static void accumulate_avx2(const step_rules *rules, const operands *o, uint32_t *d)
{
    accumulate(rules, (shape){0}, o, d);
}

FOR_AVX2 static void accumulate_eight(const step_rules *rules, const operands *o, uint32_t *d)
{
    accumulate(rules, (shape){.products = 8, .narrow_sum = true}, o, d);
}

FOR_AVX2 static void accumulate_sixteen(const step_rules *rules, const operands *o, uint32_t *d)
{
    accumulate(rules, (shape){.products = 16}, o, d);
}

void num_mma(const num_mma_model *model, num_format a_format, num_format b_format, int m, int n, int k,
             const uint32_t *a, const uint32_t *b, uint32_t *d)
{
    step_rules rules = rules_of(model, a_format, b_format, k);
    operands o = {a_format, b_format, m, n, k, a, b};
    if (!num_has_avx2())
        accumulate_anywhere(&rules, &o, d);
    else if (rules.result_bits == 23 && rules.products == 8 && rules.narrow_sum)
        accumulate_eight(&rules, &o, d);
    else if (rules.result_bits == 23 && rules.products == 16 && !rules.narrow_sum)
        accumulate_sixteen(&rules, &o, d);
    else
        accumulate_avx2(&rules, &o, d);
}
