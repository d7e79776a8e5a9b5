/* Block-scaled FP4: the exact dot products of four blocks of 16, scaled, aligned by their scales' exponents, added. */
#include "num_mma.h"

#include "num_lanes.h"
#include "num_round.h"

enum { BLOCKS = 4, BLOCK = 16, K = BLOCKS * BLOCK, ZERO_EXPONENT = -126 };

static const int16_t E2M1_HALVES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Elements in halves, scales' significands in eighths. */
typedef struct {
    int16_t halves[K];
    int32_t significand[BLOCKS], exponent[BLOCKS];
    uint8_t nans; /* bit j: block j's scale */
} row_of_a;

typedef struct {
    short_lanes halves[K];
    lanes significand[BLOCKS], exponent[BLOCKS];
    uint8_t nans[LANES];
} columns_of_b;

static row_of_a load_row(const uint8_t *elements, const uint8_t *scales)
{
    row_of_a row = {.nans = 0};
    for (int k = 0; k < K; k++)
        row.halves[k] = E2M1_HALVES[elements[k] & 15];
    for (int j = 0; j < BLOCKS; j++) {
        num_parts parts = num_unpack(NUM_E4M3, scales[j] & 0x7F);
        if (parts.special) row.nans |= (uint8_t)(1 << j);
        const bool zero = parts.special || !parts.significand;
        row.significand[j] = zero ? 0 : (int32_t)parts.significand;
        row.exponent[j] = zero ? ZERO_EXPONENT : parts.exponent;
    }
    return row;
}

static void load_columns(const uint8_t *elements, const uint8_t *scales, columns_of_b *b)
{
    for (int lane = 0; lane < LANES; lane++) {
        row_of_a column = load_row(elements + lane * K, scales + lane * BLOCKS);
        for (int k = 0; k < K; k++)
            b->halves[k][lane] = column.halves[k];
        for (int j = 0; j < BLOCKS; j++) {
            b->significand[j][lane] = column.significand[j];
            b->exponent[j][lane] = column.exponent[j];
        }
        b->nans[lane] = column.nans;
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* One row, eight columns                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* sum * 2^(exponent - fraction_bits), towards zero. */
static uint32_t rounded(int64_t sum, int exponent, int fraction_bits)
{
    uint64_t magnitude = (uint64_t)(sum < 0 ? -sum : sum);
    if (magnitude == 0) return 0;
    int scale = exponent - fraction_bits;
    if (63 - __builtin_clzll(magnitude) + scale > 127) return sum < 0 ? 0xFF800000 : 0x7F800000;
    return (uint32_t)num_round_scaled(NUM_F32, sum < 0, scale, magnitude, (num_mode){.round = NUM_RZ});
}

/* value * 2^left, shifted right by a count of each lane's own and truncated towards zero. */
IN_LANES void add_aligned(const lanes *value, int left, const lanes *right, long_lanes *sum)
{
    lanes sign = *value >> 31, magnitude = (*value ^ sign) - sign, shift = SMALLER(*right, ALL_LANES(63));
    long_lanes wide_sign = __builtin_convertvector(sign, long_lanes);
    unsigned_long_lanes wide = (unsigned_long_lanes) __builtin_convertvector(magnitude, long_lanes) << left;
    wide >>= (unsigned_long_lanes) __builtin_convertvector(shift, long_lanes);
    *sum += ((long_lanes)wide ^ wide_sign) - wide_sign;
}

/* The dot products of block j, in quarters: at most 16 * 144. */
IN_LANES void dot_lanes(const row_of_a *a, const columns_of_b *b, int j, lanes *dot)
{
    short_lanes sum = {0};
    for (int k = j * BLOCK; k < (j + 1) * BLOCK; k++)
        sum += b->halves[k] * a->halves[k];
    *dot = __builtin_convertvector(sum, lanes);
}

IN_LANES void accumulate_lanes(int fraction_bits, const row_of_a *a, const columns_of_b *b, uint32_t *d)
{
    lanes code;
    memcpy(&code, d, sizeof code);
    lanes field = code >> 23 & 255, normal = field > 0; /* comparisons give -1 */
    lanes magnitude = (code & 0x7FFFFF) | (normal & 0x800000), sign = code >> 31, zero = magnitude == 0;
    lanes c = (magnitude ^ sign) - sign, c_exponent = ((field + normal - 126) & ~zero) | (zero & ZERO_EXPONENT);
    lanes largest = c_exponent;
    for (int j = 0; j < BLOCKS; j++)
        largest = LARGER(largest, b->exponent[j] + a->exponent[j]);
    long_lanes sum = {0};
    lanes right = largest - c_exponent;
    add_aligned(&c, fraction_bits - 23, &right, &sum);
    for (int j = 0; j < BLOCKS; j++) {
        lanes block;
        dot_lanes(a, b, j, &block);
        block *= b->significand[j] * a->significand[j]; /* below 2^19, in units of 1/4 * 1/8 * 1/8 */
        right = largest - (b->exponent[j] + a->exponent[j]);
        add_aligned(&block, fraction_bits - 8, &right, &sum);
    }
    bool plain = true;
    for (int j = 0; j < LANES; j++)
        plain &= largest[j] > -90;
    if (plain) {
        num_lanes_to_f32(&sum, &largest, fraction_bits, d);
        return;
    }
    for (int j = 0; j < LANES; j++)
        d[j] = rounded(sum[j], largest[j], fraction_bits);
}

static void accumulate_anywhere(int fraction_bits, const row_of_a *a, const columns_of_b *b, uint32_t *d)
{
    accumulate_lanes(fraction_bits, a, b, d);
}

FOR_AVX2 static void accumulate_avx2(int fraction_bits, const row_of_a *a, const columns_of_b *b, uint32_t *d)
{
    accumulate_lanes(fraction_bits, a, b, d);
}

/* Whether a NaN scale reaches the sum of a column: zeros_win where the block's products add to nothing, it does not. */
static bool nan_reaches(bool zeros_win, const row_of_a *a, const columns_of_b *b, int lane)
{
    const int nans = a->nans | b->nans[lane];
    if (!zeros_win) return nans;
    for (int j = 0; j < BLOCKS; j++) {
        int sum = 0;
        for (int k = j * BLOCK; k < (j + 1) * BLOCK; k++)
            sum += a->halves[k] * b->halves[k][lane];
        if (nans >> j & 1 && sum) return true;
    }
    return false;
}

static void accumulate(int fraction_bits, bool zeros_win, const row_of_a *a, const columns_of_b *b, uint32_t *d)
{
    uint32_t c[LANES];
    memcpy(c, d, sizeof c);
    (num_has_avx2() ? accumulate_avx2 : accumulate_anywhere)(fraction_bits, a, b, d);
    for (int j = 0; j < LANES; j++) {
        bool special = (c[j] & 0x7F800000) == 0x7F800000;
        if (num_is_nan(NUM_F32, c[j]) || nan_reaches(zeros_win, a, b, j)) {
            d[j] = (uint32_t)num_nan(NUM_F32);
        } else if (special) {
            d[j] = c[j];
        }
    }
}

void num_mma_nvf4(const num_mma_model *model, bool zeros_win, int m, int n, const uint8_t *a, const uint8_t *sfa,
                  const uint8_t *b, const uint8_t *sfb, uint32_t *d)
{
    row_of_a rows[NUM_MMA_MAX_M];
    for (int i = 0; i < m; i++)
        rows[i] = load_row(a + i * K, sfa + i * BLOCKS);
    for (int j = 0; j < n; j += LANES) {
        columns_of_b columns;
        load_columns(b + j * K, sfb + j * BLOCKS, &columns);
        for (int i = 0; i < m; i++)
            accumulate(model->fraction_bits_nvf4, zeros_win, &rows[i], &columns, d + i * n + j);
    }
}
