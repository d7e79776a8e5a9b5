/* Block-scaled FP4: the exact dot products of four blocks of 16, scaled, aligned by their scales' exponents, added. */
#include "num_mma.h"

#include "num_round.h"

enum { BLOCKS = 4, BLOCK = 16, ZERO_EXPONENT = -126 };

static const int16_t E2M1_HALVES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* A row's scales: significands in eighths. */
typedef struct {
    int significand[BLOCKS], exponent[BLOCKS];
    bool nan;
} scales;

static scales load_scales(bool ue8m0, const uint8_t *codes)
{
    scales s = {.nan = false};
    for (int j = 0; j < BLOCKS; j++) {
        num_parts parts = num_unpack(ue8m0 ? NUM_UE8M0 : NUM_E4M3, ue8m0 ? codes[j] : codes[j] & 0x7F);
        s.nan |= parts.special;
        s.significand[j] = (int)parts.significand << (ue8m0 ? 3 : 0);
        s.exponent[j] = parts.significand ? parts.exponent : ZERO_EXPONENT;
    }
    return s;
}

static void load_elements(const uint8_t *codes, int16_t halves[BLOCKS * BLOCK])
{
    for (int k = 0; k < BLOCKS * BLOCK; k++)
        halves[k] = E2M1_HALVES[codes[k] & 15];
}

static int dot(const int16_t *a, const int16_t *b)
{
    int sum = 0;
    for (int k = 0; k < BLOCK; k++)
        sum += a[k] * b[k];
    return sum;
}

static int64_t truncated(int64_t significand, int shift)
{
    return significand < 0 ? -(-significand >> shift) : significand >> shift;
}

/* sum * 2^(exponent - fraction_bits), towards zero. */
static uint32_t rounded(int64_t sum, int exponent)
{
    uint64_t magnitude = (uint64_t)(sum < 0 ? -sum : sum);
    if (magnitude == 0) return 0;
    if (63 - __builtin_clzll(magnitude) + exponent > 127) return sum < 0 ? 0xFF800000 : 0x7F800000;
    return (uint32_t)num_round_scaled(NUM_F32, sum < 0, exponent, magnitude, (num_mode){.round = NUM_RZ});
}

static uint32_t accumulate(int fraction_bits, const int16_t *a, const scales *sfa, const int16_t *b, const scales *sfb,
                           uint32_t d)
{
    num_parts c = num_unpack(NUM_F32, d);
    if (sfa->nan || sfb->nan || num_is_nan(NUM_F32, d)) return (uint32_t)num_nan(NUM_F32);
    if (c.special) return d;
    int c_exponent = c.significand ? c.exponent : ZERO_EXPONENT, largest = c_exponent;
    for (int j = 0; j < BLOCKS; j++) {
        int exponent = sfa->exponent[j] + sfb->exponent[j];
        largest = exponent > largest ? exponent : largest;
    }
    int64_t c_aligned = (int64_t)c.significand << (fraction_bits - 23);
    int64_t sum = truncated(c.negative ? -c_aligned : c_aligned, largest - c_exponent < 63 ? largest - c_exponent : 63);
    for (int j = 0; j < BLOCKS; j++) {
        int64_t block = (int64_t)dot(a + j * BLOCK, b + j * BLOCK) * (sfa->significand[j] * sfb->significand[j]);
        int shift = largest - (sfa->exponent[j] + sfb->exponent[j]); /* the block's unit is 2^-8: 1/4 * 1/8 * 1/8 */
        sum += truncated(block * (INT64_C(1) << (fraction_bits - 8)), shift < 63 ? shift : 63);
    }
    return rounded(sum, largest - fraction_bits);
}

void num_mma_nvf4(const num_mma_model *model, bool ue8m0, int m, int n, const uint8_t *a, const uint8_t *sfa,
                  const uint8_t *b, const uint8_t *sfb, uint32_t *d)
{
    int16_t rows[NUM_MMA_MAX_M][BLOCKS * BLOCK], column[BLOCKS * BLOCK];
    scales row_scales[NUM_MMA_MAX_M];
    for (int i = 0; i < m; i++) {
        load_elements(a + i * BLOCKS * BLOCK, rows[i]);
        row_scales[i] = load_scales(ue8m0, sfa + i * BLOCKS);
    }
    for (int j = 0; j < n; j++) {
        load_elements(b + j * BLOCKS * BLOCK, column);
        scales column_scales = load_scales(ue8m0, sfb + j * BLOCKS);
        for (int i = 0; i < m; i++) {
            uint32_t *element = &d[i * n + j];
            *element = accumulate(model->fraction_bits_nvf4, rows[i], &row_scales[i], column, &column_scales, *element);
        }
    }
}
