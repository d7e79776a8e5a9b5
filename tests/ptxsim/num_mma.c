/* The accumulation model. Eight columns at a time in loops of constant length, which compilers turn into vectors. */
#include "num_mma.h"

#include "num_lanes.h"
#include "num_round.h"

#include <stddef.h>

static const num_mma_model MODELS[] = {
    {70, 4, 4, 16, 23, 23, 23, -132, -20, 0},    {75, 8, 8, 16, 24, 24, 23, -132, -20, 0},
    {80, 8, 4, 16, 24, 24, 23, -132, -20, 0},    {89, 8, 4, 16, 24, 13, 13, -132, -20, 0},
    {90, 16, 8, 32, 25, 13, 13, -133, -21, 0},   {100, 16, 8, 32, 25, 25, 23, -133, -21, 35},
    {120, 16, 8, 32, 25, 25, 23, -133, -21, 35},
};

const num_mma_model *num_mma_model_of(int arch)
{
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        if (MODELS[i].arch == arch) return &MODELS[i];
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Operands as significands and exponents                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

enum { NO_EXPONENT = -8192 }; /* a zero: never the largest exponent */

typedef struct {
    int32_t significand[NUM_MMA_MAX_K];
    int32_t exponent[NUM_MMA_MAX_K];
    bool special; /* an infinity or NaN among them */
} row_of_a;

typedef struct {
    lanes significand[NUM_MMA_MAX_K];
    lanes exponent[NUM_MMA_MAX_K];
    bool special;
} columns_of_b;

/* A format's fields, at hand for a loop. */
typedef struct {
    int32_t mantissa, bias, sign, fields, unused;
    uint32_t special; /* the first magnitude that is no number */
} decoder;

static decoder decoder_of(num_format format)
{
    const num_code_layout *f = &num_layouts[format];
    int sign = f->bits - f->unused - 1;
    return (decoder){
        .mantissa = f->mantissa,
        .bias = f->bias,
        .sign = sign,
        .fields = (1 << (sign - f->mantissa)) - 1,
        .unused = f->unused,
        .special = (uint32_t)f->max_finite + 1,
    };
}

static inline bool decode(const decoder *f, uint32_t code, int32_t *significand, int32_t *exponent)
{
    code >>= f->unused;
    int32_t field = (int32_t)(code >> f->mantissa) & f->fields, leading = 1 << f->mantissa;
    int32_t magnitude = ((int32_t)code & (leading - 1)) | (field ? leading : 0);
    *exponent = magnitude ? (field ? field : 1) - f->bias : NO_EXPONENT;
    *significand = code >> f->sign & 1 ? -magnitude : magnitude;
    return (code & ((1U << f->sign) - 1)) >= f->special;
}

/* What a step needs to know of the instruction. */
typedef struct {
    int products;      /* a step */
    int fraction_bits; /* kept when aligning */
    int product_shift; /* left shift that gives a product's significand that many fraction bits */
    int c_shift;       /* the same for C; negative: to the right */
    int min_exponent;
    int result_bits; /* f32: fraction bits of the result */
    num_format d_format;
    decoder c;
} step_rules;

static bool is_special(const step_rules *rules, uint32_t d)
{
    uint32_t infinity = rules->d_format == NUM_F16 ? 0x7C00 : 0x7F800000;
    return (d & infinity) == infinity;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* One step                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* sum * 2^(exponent - fraction_bits) as a code of the accumulator. */
static uint32_t rounded(const step_rules *rules, int64_t sum, int exponent)
{
    num_mode mode = {.round = rules->d_format == NUM_F16 ? NUM_RN : NUM_RZ};
    uint64_t magnitude = (uint64_t)(sum < 0 ? -sum : sum);
    if (magnitude == 0) return 0;
    int scale = exponent - rules->fraction_bits, leading = 63 - __builtin_clzll(magnitude);
    if (rules->d_format == NUM_F32) {
        if (leading + scale > 127) return sum < 0 ? 0xFF800000 : 0x7F800000;
        int dropped = leading - rules->result_bits;
        if (rules->result_bits < 23 && dropped > 0) magnitude &= ~num_mask(dropped);
    }
    return (uint32_t)num_round_scaled(rules->d_format, sum < 0, scale, magnitude, mode);
}

/* Eight codes of C. */
typedef struct {
    lanes magnitude, sign, exponent; /* sign: 0 or -1 */
} lanes_of_c;

IN_LANES void load_c(const decoder *f, const uint32_t *d, lanes_of_c *c)
{
    lanes code;
    memcpy(&code, d, sizeof code);
    lanes field = (code >> f->mantissa) & f->fields, normal = field > 0; /* comparisons give -1 */
    c->magnitude = (code & ((1 << f->mantissa) - 1)) | (normal & (1 << f->mantissa));
    c->sign = -(code >> f->sign & 1);
    lanes zero = c->magnitude == 0;
    c->exponent = ((field + 1 + normal - f->bias) & ~zero) | (zero & NO_EXPONENT);
}

/* A magnitude aligned and truncated, with its sign. */
IN_LANES void add_aligned(const lanes *magnitude, const lanes *sign, int left, const lanes *right, lanes *sum)
{
    lanes shift = SMALLER(*right, ALL_LANES(31));
    lanes aligned = (lanes)((unsigned_lanes)*magnitude << left >> (unsigned_lanes)shift);
    *sum += (aligned ^ *sign) - *sign;
}

IN_LANES void add_product(const step_rules *rules, const row_of_a *a, const columns_of_b *b, int k,
                          const lanes *largest, lanes *sum)
{
    lanes product = b->significand[k] * a->significand[k], sign = product >> 31;
    lanes magnitude = (product ^ sign) - sign, right = *largest - (b->exponent[k] + a->exponent[k]);
    add_aligned(&magnitude, &sign, rules->product_shift, &right, sum);
}

IN_LANES void step_lanes(const step_rules *rules, const row_of_a *a, const columns_of_b *b, int first, uint32_t *d)
{
    lanes_of_c c;
    load_c(&rules->c, d, &c);
    lanes largest = LARGER(c.exponent, ALL_LANES(rules->min_exponent));
    for (int k = first; k < first + rules->products; k++) {
        lanes exponent = b->exponent[k] + a->exponent[k];
        largest = LARGER(exponent, largest);
    }
    lanes even = {0}, odd = {0}, rest = {0}; /* two sums of products, so that none reaches 2^31 */
    for (int k = first; k < first + rules->products; k += 2) {
        add_product(rules, a, b, k, &largest, &even);
        add_product(rules, a, b, k + 1, &largest, &odd);
    }
    int left = rules->c_shift > 0 ? rules->c_shift : 0, more = rules->c_shift < 0 ? -rules->c_shift : 0;
    lanes right = largest - c.exponent + more;
    add_aligned(&c.magnitude, &c.sign, left, &right, &rest);
    long_lanes sum = __builtin_convertvector(even, long_lanes) + __builtin_convertvector(odd, long_lanes) +
                     __builtin_convertvector(rest, long_lanes);
    bool plain = rules->d_format == NUM_F32 && rules->result_bits == 23;
    for (int j = 0; j < LANES; j++)
        plain &= largest[j] > -90;
    if (plain) {
        num_lanes_to_f32(&sum, &largest, rules->fraction_bits, d);
        return;
    }
    for (int j = 0; j < LANES; j++)
        d[j] = rounded(rules, sum[j], largest[j]);
}

static void step_lanes_anywhere(const step_rules *rules, const row_of_a *a, const columns_of_b *b, int first,
                                uint32_t *d)
{
    step_lanes(rules, a, b, first, d);
}

FOR_AVX2 static void step_lanes_avx2(const step_rules *rules, const row_of_a *a, const columns_of_b *b, int first,
                                     uint32_t *d)
{
    step_lanes(rules, a, b, first, d);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Infinities and NaN                                                                                               */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct {
    num_format a_format, b_format;
    int k;
    const uint32_t *a_codes, *b_codes; /* one row of A, one column of B */
} one_element;

/* Something is an infinity or NaN, so the sum is: a sum of doubles says which. */
static uint32_t special_sum(const step_rules *rules, const one_element *e, int first, uint32_t c)
{
    double sum = num_value(rules->d_format, c);
    for (int k = first; k < first + rules->products; k++) {
        sum += num_value(e->a_format, e->a_codes[k]) * num_value(e->b_format, e->b_codes[k]);
    }
    return (uint32_t)num_from_value(rules->d_format, sum, (num_mode){0});
}

/* One element of D where its row, its column or C holds an infinity or NaN, perhaps not in this step. */
static uint32_t careful_step(const step_rules *rules, const one_element *e, int first, uint32_t d)
{
    bool special = is_special(rules, d);
    decoder a_decoder = decoder_of(e->a_format), b_decoder = decoder_of(e->b_format);
    row_of_a a;
    columns_of_b b;
    uint32_t result[LANES] = {d};
    for (int k = first; k < first + rules->products; k++) {
        int32_t significand, exponent;
        special |= decode(&a_decoder, e->a_codes[k], &a.significand[k], &a.exponent[k]);
        special |= decode(&b_decoder, e->b_codes[k], &significand, &exponent);
        b.significand[k] = (lanes){significand};
        b.exponent[k] = (lanes){exponent};
    }
    if (special) return special_sum(rules, e, first, d);
    step_lanes_anywhere(rules, &a, &b, first, result);
    return result[0];
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* A whole instruction                                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

static bool is_narrow(num_format format) { return num_bits(format) <= 8; }

static step_rules rules_of(const num_mma_model *model, num_format a, num_format b, num_format d, int k)
{
    bool narrow = is_narrow(a);
    int step = narrow ? model->step_8 : a == NUM_TF32 ? model->step_32 : model->step_16;
    int fraction_bits = narrow ? model->fraction_bits_8 : model->fraction_bits;
    return (step_rules){
        .products = step < k ? step : k,
        .fraction_bits = fraction_bits,
        .product_shift = fraction_bits - num_layouts[a].mantissa - num_layouts[b].mantissa,
        .c_shift = fraction_bits - num_layouts[d].mantissa,
        .min_exponent = d == NUM_F16 ? model->min_exponent_f16 : model->min_exponent,
        .result_bits = narrow ? model->result_bits_8 : 23,
        .d_format = d,
        .c = decoder_of(d),
    };
}

typedef struct {
    num_format a_format, b_format;
    int m, n, k;
    const uint32_t *a, *b; /* codes */
} operands;

static void load_columns(const operands *o, int n0, columns_of_b *b)
{
    decoder f = decoder_of(o->b_format);
    b->special = false;
    for (int j = 0; j < LANES; j++) {
        for (int k = 0; k < o->k; k++) {
            int32_t significand, exponent;
            b->special |= decode(&f, o->b[(n0 + j) * o->k + k], &significand, &exponent);
            b->significand[k][j] = significand;
            b->exponent[k][j] = exponent;
        }
    }
}

static void load_row(const operands *o, int m, row_of_a *a)
{
    decoder f = decoder_of(o->a_format);
    a->special = false;
    for (int k = 0; k < o->k; k++) {
        a->special |= decode(&f, o->a[m * o->k + k], &a->significand[k], &a->exponent[k]);
    }
}

/* Eight elements of a row of D. */
static void accumulate_lanes(const step_rules *rules, const operands *o, const row_of_a *a, const columns_of_b *b,
                             int m, int n0, uint32_t *d)
{
    bool special = a->special || b->special;
    for (int j = 0; j < LANES; j++)
        special |= is_special(rules, d[j]);
    for (int first = 0; first < o->k; first += rules->products) {
        if (special) {
            for (int j = 0; j < LANES; j++) {
                one_element e = {o->a_format, o->b_format, o->k, o->a + m * o->k, o->b + (n0 + j) * o->k};
                d[j] = careful_step(rules, &e, first, d[j]);
            }
            continue;
        }
        (num_has_avx2() ? step_lanes_avx2 : step_lanes_anywhere)(rules, a, b, first, d);
        for (int j = 0; j < LANES; j++)
            special |= is_special(rules, d[j]); /* an overflow, for the next step */
    }
}

static void accumulate(const num_mma_model *model, const operands *o, num_format d_format, uint32_t *d)
{
    step_rules rules = rules_of(model, o->a_format, o->b_format, d_format, o->k);
    row_of_a rows[NUM_MMA_MAX_M];
    for (int m = 0; m < o->m; m++)
        load_row(o, m, &rows[m]);
    for (int n0 = 0; n0 < o->n; n0 += LANES) {
        columns_of_b b;
        load_columns(o, n0, &b);
        for (int m = 0; m < o->m; m++)
            accumulate_lanes(&rules, o, &rows[m], &b, m, n0, d + m * o->n + n0);
    }
}

void num_mma(const num_mma_model *model, num_format a_format, num_format b_format, num_format d_format, int m, int n,
             int k, const uint32_t *a, const uint32_t *b, uint32_t *d)
{
    operands o = {a_format, b_format, m, n, k, a, b};
    accumulate(model, &o, d_format, d);
}
