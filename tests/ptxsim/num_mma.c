/* The accumulation model. Eight columns at a time in loops of constant length, which compilers turn into vectors. */
#include "num_mma.h"

#include "num_round.h"

#include <math.h>
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

enum { LANES = 8, NO_EXPONENT = -8192 }; /* a zero: never the largest exponent */

typedef int32_t lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t unsigned_lanes __attribute__((vector_size(4 * LANES)));

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
    int bits = num_bits(format), unused = num_unused_bits(format), mantissa = num_mantissa_bits(format);
    return (decoder){
        .mantissa = mantissa,
        .bias = num_bias(format),
        .sign = bits - unused - 1,
        .fields = (1 << (bits - unused - 1 - mantissa)) - 1,
        .unused = unused,
        .special = (uint32_t)num_max_finite(format) + 1,
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

/* `rounded` where the result is an f32 of 23 bits and certainly not subnormal, or zero. */
static inline uint32_t rounded_f32(const step_rules *rules, int64_t sum, int exponent)
{
    double unit = num_double((uint64_t)(exponent - rules->fraction_bits + 1023) << 52);
    uint64_t bits = num_double_bits((double)sum * unit);            /* exact: fewer than 53 bits */
    return num_float_bits((float)num_double(bits & ~num_mask(29))); /* truncated to 23, so the cast is exact too */
}

static inline __attribute__((always_inline)) void step_lanes(const step_rules *rules, const row_of_a *a,
                                                             const columns_of_b *b, int first, uint32_t *d)
{
    lanes c_significand, c_exponent, largest, sums[2] = {{0}}; /* two sums, so that none reaches 2^31 */
    for (int j = 0; j < LANES; j++) {
        int32_t significand, exponent;
        decode(&rules->c, d[j], &significand, &exponent);
        c_significand[j] = significand;
        c_exponent[j] = exponent;
        largest[j] = exponent > rules->min_exponent ? exponent : rules->min_exponent;
    }
    for (int k = first; k < first + rules->products; k++) {
        lanes exponent = b->exponent[k] + a->exponent[k], greater = exponent > largest;
        largest = (exponent & greater) | (largest & ~greater);
    }
    for (int k = first; k < first + rules->products; k++) {
        lanes product = b->significand[k] * a->significand[k], sign = product >> 31;
        lanes right = largest - (b->exponent[k] + a->exponent[k]), out = right > 31;
        unsigned_lanes magnitude = (unsigned_lanes)((product ^ sign) - sign) << rules->product_shift;
        lanes aligned = (lanes)(magnitude >> (unsigned_lanes)((right & ~out) | (31 & out)));
        sums[k & 1] += (aligned ^ sign) - sign;
    }
    int left = rules->c_shift > 0 ? rules->c_shift : 0, more = rules->c_shift < 0 ? -rules->c_shift : 0;
    for (int j = 0; j < LANES; j++) {
        int32_t right = largest[j] - c_exponent[j] + more, c = c_significand[j];
        int32_t magnitude = ((c < 0 ? -c : c) << left) >> (right < 31 ? right : 31);
        int64_t sum = (int64_t)sums[0][j] + sums[1][j] + (c < 0 ? -magnitude : magnitude);
        bool plain = rules->d_format == NUM_F32 && rules->result_bits == 23 && largest[j] > -90;
        d[j] = plain ? rounded_f32(rules, sum, largest[j]) : rounded(rules, sum, largest[j]);
    }
}

static void step_lanes_anywhere(const step_rules *rules, const row_of_a *a, const columns_of_b *b, int first,
                                uint32_t *d)
{
    step_lanes(rules, a, b, first, d);
}

#ifdef __x86_64__ /* shifts by a different amount in each lane */
__attribute__((target("avx2"))) static void step_lanes_avx2(const step_rules *rules, const row_of_a *a,
                                                            const columns_of_b *b, int first, uint32_t *d)
{
    step_lanes(rules, a, b, first, d);
}
#else
#define step_lanes_avx2 step_lanes_anywhere
#endif

static bool has_avx2(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
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
        .product_shift = fraction_bits - num_mantissa_bits(a) - num_mantissa_bits(b),
        .c_shift = fraction_bits - num_mantissa_bits(d),
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
        (has_avx2() ? step_lanes_avx2 : step_lanes_anywhere)(rules, a, b, first, d);
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
