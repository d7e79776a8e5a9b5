/* The scalar path: the specification, in portable C.
 * Where both operands are NVFP4, a block of 16 products is summed in integers (2 e2m1 is a small integer), multiplied
 * by sfa * sfb / 4 and added in fp32. Only that addition rounds. Elsewhere every element of both operands is exact in
 * fp32, and so is every product. Only the additions round. */
#include "cpu_operand.h"

#define CPU_TARGET
#include "cpu_rows.h"

#include <float.h>

#define PANEL_ROWS 32
#define PANEL_K 512 /* elements decoded at a time: two panels fit the L2 of a core */
#define BLOCKS (PANEL_K / NK_SF_VEC)

typedef struct code_panel {
    int16_t twice_e2m1[PANEL_ROWS][PANEL_K];
    float sf[PANEL_ROWS][BLOCKS];
} code_panel;

typedef float value_panel[PANEL_ROWS][PANEL_K];

/* ---------------------------------------------------------------------------------------------------------------- */
/* Rows of blocks                                                                                                   */
/* ---------------------------------------------------------------------------------------------------------------- */

static float finite_amax_row(const uint8_t *from, nk_dtype dtype, int64_t count)
{
    float amax = 0;
    for (int64_t i = 0; i < count; i++) {
        float v = fabsf(cpu_load_float(from + i * float_bytes(dtype), dtype));
        if (v > amax && v <= FLT_MAX) amax = v;
    }
    return amax;
}

static uint8_t encode_row_block(const cpu_encoder *e, const float x[NK_SF_VEC], uint8_t codes[NK_SF_VEC / 2])
{
    float amax = 0;
    bool poisoned = !e->valid;
    for (int i = 0; i < NK_SF_VEC; i++) {
        poisoned = poisoned || isnan(x[i]);
        amax = fmaxf(amax, fabsf(x[i]));
    }
    memset(codes, 0, NK_SF_VEC / 2);
    if (poisoned) return NK_E4M3_NAN;
    uint8_t sf = cpu_e4m3_of_float(fminf(fmaxf(amax * e->to_sf, e->smallest), NK_E4M3_MAX));
    if (sf == 0) return 0;

    float to_code = fminf(1.0f / (cpu_e4m3_to_float(sf) * e->inverse_s), FLT_MAX);
    for (int i = 0; i < NK_SF_VEC; i++) {
        /* An infinity saturates even where to_code is 0. */
        uint8_t code = e2m1_of_float(isinf(x[i]) ? copysignf(NK_E2M1_MAX, x[i]) : x[i] * to_code);
        codes[i / 2] |= (uint8_t)(i % 2 ? code << 4 : code);
    }
    return sf;
}

static void encode_row(const cpu_encoder *e, const uint8_t *from, nk_dtype dtype, int64_t blocks, uint8_t *codes,
                       uint8_t *sf)
{
    float values[NK_SF_VEC];
    for (int64_t b = 0; b < blocks; b++) {
        load_row(from + b * NK_SF_VEC * float_bytes(dtype), dtype, NK_SF_VEC, values);
        sf[b] = encode_row_block(e, values, codes + b * (NK_SF_VEC / 2));
    }
}

/* The squared error, by halves as vectors add it. */
static float error_of_block(const float x[NK_SF_VEC], const uint8_t codes[NK_SF_VEC / 2], float step)
{
    float sums[NK_SF_VEC / 2];
    for (int k = 0; k < NK_SF_VEC / 2; k++) {
        float even = E2M1[codes[k] & 7] * step - fabsf(x[2 * k]);
        float odd = E2M1[codes[k] >> 4 & 7] * step - fabsf(x[2 * k + 1]);
        sums[k] = even * even + odd * odd;
    }
    for (int apart = NK_SF_VEC / 4; apart > 0; apart /= 2) {
        for (int k = 0; k < apart; k++)
            sums[k] += sums[k + apart];
    }
    return sums[0];
}

/* Codes and scale factor by which the largest magnitude, a, becomes `target`. */
static uint8_t encode_to(const cpu_encoder *e, float target, float a, const float x[NK_SF_VEC],
                         uint8_t codes[NK_SF_VEC / 2], float *error)
{
    uint8_t sf = cpu_e4m3_of_float(fminf(fmaxf(a / fminf(target * e->s2, FLT_MAX), e->smallest), NK_E4M3_MAX));
    float step = fminf(cpu_e4m3_to_float(sf) * e->s2, FLT_MAX);
    memset(codes, 0, NK_SF_VEC / 2);
    for (int i = 0; step > 0 && i < NK_SF_VEC; i++) {
        uint8_t code = e2m1_of_float(x[i] / step);
        codes[i / 2] |= (uint8_t)(i % 2 ? code << 4 : code);
    }
    *error = error_of_block(x, codes, step);
    return sf;
}

static void encode_four_six_row(const cpu_encoder *e, const uint8_t *from, nk_dtype dtype, int64_t blocks,
                                uint8_t *codes, uint8_t *sf)
{
    float x[NK_SF_VEC];
    for (int64_t b = 0; b < blocks; b++, codes += NK_SF_VEC / 2) {
        float amax = 0, error6, error4;
        bool poisoned = false;
        uint8_t codes4[NK_SF_VEC / 2];
        load_row(from + b * NK_SF_VEC * float_bytes(dtype), dtype, NK_SF_VEC, x);
        for (int i = 0; i < NK_SF_VEC; i++) {
            poisoned = poisoned || isnan(x[i]);
            amax = fmaxf(amax, fabsf(x[i]));
        }
        sf[b] = encode_to(e, 6, amax, x, codes, &error6);
        uint8_t sf4 = encode_to(e, 4, amax, x, codes4, &error4);
        if (error4 < error6) { /* false where one is NaN */
            sf[b] = sf4;
            memcpy(codes, codes4, sizeof codes4);
        }
        if (poisoned) {
            sf[b] = NK_E4M3_NAN;
            memset(codes, 0, NK_SF_VEC / 2);
        }
    }
}

static void decode_row(const uint8_t *codes, const uint8_t *sf, float s2, int64_t blocks, float *values)
{
    for (int64_t b = 0; b < blocks; b++) {
        float scale = cpu_e4m3_to_float(sf[b]);
        for (int i = 0; i < NK_SF_VEC; i++)
            values[b * NK_SF_VEC + i] = E2M1[codes[b * (NK_SF_VEC / 2) + i / 2] >> (i % 2 * 4) & 15] * scale * s2;
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Sums                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

static void decode_codes(const uint8_t *packed, int64_t count, int16_t *twice_e2m1)
{
    for (int64_t i = 0; i < count / 2; i++) {
        twice_e2m1[2 * i] = TWICE_E2M1[packed[i] & 15];
        twice_e2m1[2 * i + 1] = TWICE_E2M1[packed[i] >> 4];
    }
}

/* Elements k0 .. k0 + kb - 1 of an operand's rows row0 .. row0 + rows - 1, or of those that `index` names. */
typedef struct panel_of {
    const nk_operand *operand;
    int64_t l, row0, rows, k0, kb, k;
    const int64_t *index; /* or NULL */
} panel_of;

static int64_t panel_row(const panel_of *p, int64_t r) { return p->index ? p->index[r] : p->row0 + r; }

static void load_code_panel(const panel_of *p, code_panel *panel)
{
    uint8_t sf[BLOCKS];
    for (int64_t r = 0; r < p->rows; r++) {
        decode_codes(operand_row(p->operand, p->l, panel_row(p, r)) + p->k0 / 2, p->kb, panel->twice_e2m1[r]);
        gather_sf(p->operand, p->l, panel_row(p, r), p->k0 / NK_SF_VEC, p->kb / NK_SF_VEC, p->k / NK_SF_VEC, sf);
        for (int64_t block = 0; block < p->kb / NK_SF_VEC; block++)
            panel->sf[r][block] = cpu_e4m3_to_float(sf[block]);
    }
}

static void load_values(const panel_of *p, value_panel panel)
{
    uint8_t sf[BLOCKS];
    for (int64_t r = 0; r < p->rows; r++) {
        const nk_operand *o = p->operand;
        const uint8_t *row = operand_row(o, p->l, panel_row(p, r));
        if (o->dtype == NK_E2M1X2) {
            gather_sf(o, p->l, panel_row(p, r), p->k0 / NK_SF_VEC, p->kb / NK_SF_VEC, p->k / NK_SF_VEC, sf);
            decode_row(row + p->k0 / 2, sf, 1, p->kb / NK_SF_VEC, panel[r]);
        } else {
            load_strided(row + p->k0 * o->k_stride, o->dtype, o->k_stride, p->kb, panel[r]);
            for (int64_t i = p->kb; i % NK_SF_VEC; i++) /* dot_values takes so many at a time */
                panel[r][i] = 0;
        }
    }
}

static float dot_codes(const int16_t *a, const float *sfa, const int16_t *b, const float *sfb, int64_t kb, float sum)
{
    for (int64_t block = 0; block < kb / NK_SF_VEC; block++) {
        int32_t dot = 0;
        for (int i = 0; i < NK_SF_VEC; i++)
            dot += a[block * NK_SF_VEC + i] * b[block * NK_SF_VEC + i];
        sum += (float)dot * (0.25f * sfa[block] * sfb[block]);
    }
    return sum;
}

static float dot_values(const float *a, const float *b, int64_t kb, float sum)
{
    float lanes[NK_SF_VEC] = {0}; /* independent sums, so that compilers can use vectors */
    for (int64_t i = 0; i < kb; i += NK_SF_VEC) {
        for (int lane = 0; lane < NK_SF_VEC; lane++)
            lanes[lane] += a[i + lane] * b[i + lane];
    }
    for (int lane = 0; lane < NK_SF_VEC; lane++)
        sum += lanes[lane];
    return sum;
}

static void add_codes(const panel_of *a, const panel_of *b, cpu_tile acc, int64_t i0, int64_t j0)
{
    code_panel pa, pb;
    load_code_panel(a, &pa);
    load_code_panel(b, &pb);
    for (int64_t i = 0; i < a->rows; i++) {
        for (int64_t j = 0; j < b->rows; j++) {
            float *sum = &acc[i0 + i][j0 + j];
            *sum = dot_codes(pa.twice_e2m1[i], pa.sf[i], pb.twice_e2m1[j], pb.sf[j], a->kb, *sum);
        }
    }
}

static void add_values(const panel_of *a, const panel_of *b, cpu_tile acc, int64_t i0, int64_t j0)
{
    value_panel pa, pb;
    load_values(a, pa);
    load_values(b, pb);
    for (int64_t i = 0; i < a->rows; i++) {
        for (int64_t j = 0; j < b->rows; j++)
            acc[i0 + i][j0 + j] = dot_values(pa[i], pb[j], a->kb, acc[i0 + i][j0 + j]);
    }
}

static void sum_gemm_tile(const cpu_tile_gemm *p, cpu_tile acc)
{
    bool codes = p->a->dtype == NK_E2M1X2 && p->b->dtype == NK_E2M1X2;
    for (int64_t i = 0; i < p->mb; i++)
        memset(acc[i], 0, (size_t)p->nb * sizeof acc[i][0]);
    for (int64_t i0 = 0; i0 < p->mb; i0 += PANEL_ROWS) {
        for (int64_t j0 = 0; j0 < p->nb; j0 += PANEL_ROWS) {
            for (int64_t k0 = 0; k0 < p->k; k0 += PANEL_K) {
                int64_t kb = cpu_min(PANEL_K, p->k - k0);
                const int64_t *index = p->rows_of_a ? p->rows_of_a + i0 : NULL;
                panel_of a = {p->a, p->l, p->m0 + i0, cpu_min(PANEL_ROWS, p->mb - i0), k0, kb, p->k, index};
                panel_of b = {p->b, p->l, p->n0 + j0, cpu_min(PANEL_ROWS, p->nb - j0), k0, kb, p->k, NULL};
                (codes ? add_codes : add_values)(&a, &b, acc, i0, j0);
            }
        }
    }
}

static bool available(void) { return true; }

const cpu_path cpu_path_scalar = {
    .name = "scalar",
    .why = "CPU tensors; portable C, the specification",
    .available = available,
    .gemm_tile = sum_gemm_tile,
    CPU_ROWS,
};
