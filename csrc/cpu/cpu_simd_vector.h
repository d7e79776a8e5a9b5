/* The sums of one row of A. Each row of B is read from start to end with K across lanes, the order in which memory is
 * fastest. So the order of a sum differs from that of cpu_simd_tile.h. Elements lie in the order in which nibbles are
 * taken out of words. */
#ifndef NK_CPU_SIMD_VECTOR_H
#define NK_CPU_SIMD_VECTOR_H

#include "cpu_simd_tile.h"

#define STEP (NK_SF_VEC * LANES) /* elements: two vectors of codes, one of scale factors */
#define VECTOR_K 16384           /* elements of an NVFP4 A, decoded at a time */
#define VALUE_VECTOR_K 4096
#define AHEAD 1024    /* bytes of codes to prefetch, since hardware stops at the end of a page */
#define VECTOR_ROWS 4 /* rows of B at a time: A is loaded once for them */

typedef struct vector_step {
    ALIGNED int8_t even[2][4 * LANES], odd[2][4 * LANES];
    int32_t bias[2][LANES];
    float quarter_sf[LANES];
} vector_step;

/* Element 8 w + i of each half of a step is at [half][i][w]. */
typedef struct value_step {
    ALIGNED float value[2][8][LANES];
} value_step;

/* A row of B in one step: its codes, and a scale factor for each block. */
typedef struct weight_step {
    vi codes[2];
    vf sf;
} weight_step;

/* The codes and scale factors of a row of B. Blocked scale factors have been gathered to be contiguous. */
typedef struct weight_row {
    const uint8_t *codes, *sf;
} weight_row;

/* Beyond the `left` elements that remain, codes and scale factors are 0. */
OPERATION weight_step load_step(const weight_row *row, int64_t k, int64_t left)
{
    const uint8_t *codes = row->codes + k / 2;
    PREFETCH(codes + AHEAD);
    PREFETCH(codes + AHEAD + 4 * LANES);
    weight_step step;
    step.codes[0] = left >= STEP ? vi_load(codes) : vi_load_some(codes, cpu_min(left / 8, LANES));
    step.codes[1] = left >= STEP ? vi_load(codes + 4 * LANES)
                                 : vi_load_some(codes + 4 * LANES, left / 8 > LANES ? left / 8 - LANES : 0);
    uint8_t bytes[LANES];
    const uint8_t *sf = row->sf + k / NK_SF_VEC;
    if (left < STEP) {
        memset(bytes, 0, sizeof bytes);
        memcpy(bytes, sf, (size_t)(left / NK_SF_VEC));
        sf = bytes;
    }
    step.sf = vf_of_e4m3(vi_and(vi_of_bytes(sf), vi_set(0x7F)));
    return step;
}

/* Finds VECTOR_ROWS rows of B from column j on, at element k0. Beyond the last row they repeat it. */
CPU_TARGET static void find_rows(const cpu_tile_gemm *p, int64_t j, int64_t k0, int64_t kb,
                                 uint8_t sf[VECTOR_ROWS][VECTOR_K / NK_SF_VEC], weight_row rows[VECTOR_ROWS])
{
    for (int64_t r = 0; r < VECTOR_ROWS; r++) {
        int64_t n = p->n0 + j + r;
        if (j + r >= p->nb) {
            rows[r] = rows[r - 1];
            continue;
        }
        rows[r].codes = operand_row(p->b, p->l, n) + k0 / 2;
        if (p->b->sf_layout == NK_SF_LINEAR) {
            rows[r].sf = operand_sf_at(p->b, p->l, n, k0 / NK_SF_VEC, p->k / NK_SF_VEC);
        } else {
            gather_sf(p->b, p->l, n, k0 / NK_SF_VEC, kb / NK_SF_VEC, p->k / NK_SF_VEC, sf[r]);
            rows[r].sf = sf[r];
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* NVFP4 A                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

CPU_TARGET static void load_code_vector(const cpu_tile_gemm *p, int64_t k0, int64_t kb, vector_step *steps)
{
    uint8_t sf[VECTOR_K / NK_SF_VEC];
    gather_sf(p->a, p->l, cpu_row_of_a(p, 0), k0 / NK_SF_VEC, kb / NK_SF_VEC, p->k / NK_SF_VEC, sf);
    weight_row row = {operand_row(p->a, p->l, cpu_row_of_a(p, 0)) + k0 / 2, sf};
    const vi raise = raised_of_nibbles(vi_set(0));
    for (int64_t k = 0; k < kb; k += STEP, steps++) {
        weight_step step = load_step(&row, k, kb - k);
        vf_store(steps->quarter_sf, vf_mul(step.sf, vf_set(0.25f)));
        for (int half = 0; half < 2; half++) {
            vi even = vi_sub_bytes(raised_of_nibbles(step.codes[half]), raise);
            vi odd = vi_sub_bytes(raised_of_nibbles(vi_srl(step.codes[half], 4)), raise);
            vi_store(steps->even[half], even);
            vi_store(steps->odd[half], odd);
            vi_store(steps->bias[half], vi_sub(vi_set(0), dot_pair(vi_set(0), raise, even, raise, odd)));
        }
    }
}

OPERATION vf add_step(const vector_step *a, const weight_row *row, int64_t k, int64_t left, vf sum)
{
    weight_step b = load_step(row, k, left);
    vf scale = vf_mul(b.sf, vf_load(a->quarter_sf));
    UNROLL for (int half = 0; half < 2; half++)
    {
        vi even = raised_of_nibbles(b.codes[half]), odd = raised_of_nibbles(vi_srl(b.codes[half], 4));
        vi dot = dot_pair(vi_load(a->bias[half]), even, vi_load(a->even[half]), odd, vi_load(a->odd[half]));
        sum = vf_fma(vf_of_int(dot), vf_twice_each(scale, half), sum);
    }
    return sum;
}

/* The vector's elements are one kind or the other; all else is the same. */
#define MULTIPLY_VECTOR(name, step_type, MOST_K, load, add)                              \
    CPU_TARGET static void name(const cpu_tile_gemm *p, float *sums)                     \
    {                                                                                    \
        step_type a[(MOST_K) / STEP];                                                    \
        uint8_t sf[VECTOR_ROWS][VECTOR_K / NK_SF_VEC];                                   \
        weight_row rows[VECTOR_ROWS];                                                    \
        for (int64_t k0 = 0; k0 < p->k; k0 += (MOST_K)) {                                \
            int64_t kb = cpu_min(MOST_K, p->k - k0), k;                                  \
            load(p, k0, kb, a);                                                          \
            for (int64_t j = 0; j < p->nb; j += VECTOR_ROWS) {                           \
                vf sum[VECTOR_ROWS];                                                     \
                find_rows(p, j, k0, kb, sf, rows);                                       \
                UNROLL for (int r = 0; r < VECTOR_ROWS; r++) sum[r] = vf_set(0);         \
                for (k = 0; k + STEP <= kb; k += STEP) {                                 \
                    UNROLL for (int r = 0; r < VECTOR_ROWS; r++)                         \
                    {                                                                    \
                        sum[r] = add(&a[k / STEP], &rows[r], k, STEP, sum[r]);           \
                    }                                                                    \
                }                                                                        \
                UNROLL for (int r = 0; r < VECTOR_ROWS; r++)                             \
                {                                                                        \
                    if (k < kb) sum[r] = add(&a[k / STEP], &rows[r], k, kb - k, sum[r]); \
                    if (j + r < p->nb) sums[j + r] += vf_sum(sum[r]);                    \
                }                                                                        \
            }                                                                            \
        }                                                                                \
    }

MULTIPLY_VECTOR(gemv_codes, vector_step, VECTOR_K, load_code_vector, add_step)

/* ---------------------------------------------------------------------------------------------------------------- */
/* 16-bit A                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

CPU_TARGET static void load_value_vector(const cpu_tile_gemm *p, int64_t k0, int64_t kb, value_step *steps)
{
    float values[STEP];
    const uint8_t *from = operand_row(p->a, p->l, cpu_row_of_a(p, 0)) + k0 * p->a->k_stride;
    for (int64_t k = 0; k < kb; k += STEP, steps++) {
        int64_t count = cpu_min(STEP, kb - k);
        memset(values, 0, sizeof values);
        load_strided(from + k * p->a->k_stride, p->a->dtype, p->a->k_stride, count, values);
        for (int i = 0; i < STEP; i++)
            steps->value[i / (8 * LANES)][i % 8][i / 8 % LANES] = values[i];
    }
}

OPERATION vf add_value_step(const value_step *a, const weight_row *row, int64_t k, int64_t left, vf sum)
{
    weight_step b = load_step(row, k, left);
    UNROLL for (int half = 0; half < 2; half++)
    {
        vf scale = vf_twice_each(b.sf, half);
        UNROLL for (int i = 0; i < 8; i++)
        {
            vf weight = vf_mul(vf_of_e2m1(vi_srl(b.codes[half], 4 * i)), scale);
            sum = vf_fma(vf_load(a->value[half][i]), weight, sum);
        }
    }
    return sum;
}

MULTIPLY_VECTOR(gemv_values, value_step, VALUE_VECTOR_K, load_value_vector, add_value_step)

CPU_TARGET static void sum_gemv(const cpu_tile_gemm *p, float *sums)
{
    memset(sums, 0, (size_t)p->nb * sizeof *sums);
    (p->a->dtype == NK_E2M1X2 ? gemv_codes : gemv_values)(p, sums);
}

#endif
