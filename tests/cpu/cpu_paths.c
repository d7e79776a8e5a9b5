/* Every path of this processor against the scalar one, function by function: the same bits. A program of its own, so
 * that paths of other processors can be run in an emulator; says how much it compared, stops at the first difference.
 * Buffers are as large as they must be, on the heap: built with -fsanitize=address, it sees what is read beyond. */
#include "cpu/cpu_path.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cpu_path *const paths[] = {
#ifdef CPU_X86
    &cpu_path_avx2,     &cpu_path_avx512_bw,    &cpu_path_avx512_vnni,
#endif
#ifdef CPU_NEON
    &cpu_path_neon_mul, &cpu_path_neon_dotprod,
#endif
};
static const cpu_path *tested;
static long compared;

static uint32_t random_bits(void)
{
    static uint64_t state = 0x9E3779B97F4A7C15u;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static void *random_bytes(size_t count)
{
    uint8_t *made = malloc(count ? count : 1);
    for (size_t i = 0; i < count; i++)
        made[i] = (uint8_t)random_bits();
    return made;
}

static void fail(const char *what, long at)
{
    printf("%s: %s differs from the scalar path at %ld\n", tested->name, what, at);
    exit(1);
}

static void same_bytes(const char *what, const void *got, const void *want, size_t count)
{
    const uint8_t *g = got, *w = want;
    for (size_t i = 0; i < count; i++, compared++)
        if (g[i] != w[i]) fail(what, (long)i);
}

/* All bits but a NaN's. */
static void same_floats(const char *what, const float *got, const float *want, size_t count)
{
    for (size_t i = 0; i < count; i++, compared++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0 && !(isnan(got[i]) && isnan(want[i]))) fail(what, (long)i);
}

#define KINDS 5

/* Kind 0 is any bits; others are numbers of one magnitude, in 2 with some that are not numbers, in 3 with blocks of -0;
 * 4 is quarters up to 6, codes and ties among them. */
static void fill_floats(float *values, size_t count, int kind)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = random_bits();
        memcpy(&values[i], &bits, sizeof bits);
        if (kind) values[i] = (float)(int32_t)bits * 0x1p-30f * (float)kind;
        if (kind == 2 && bits % 97 == 0) values[i] = bits % 2 ? NAN : INFINITY;
        if (kind == 3 && i / 16 % 3 == 0) values[i] = -0.0f;
        if (kind == 4) values[i] = i % 16 ? (float)((int)(bits % 49) - 24) / 4 : NK_E2M1_MAX;
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Products                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Scale factors are any bytes, or powers of two from 1/4 to 2 where sums have to be exact in any order. */
static nk_operand make_codes(int64_t rows, int64_t k, nk_sf_layout layout, bool exact)
{
    int64_t cols = k / NK_SF_VEC, bytes = rows * cols;
    if (layout == NK_SF_BLOCKED) bytes = nk_sf_padded_rows(rows) * nk_sf_padded_cols(cols);
    uint8_t *sf = random_bytes((size_t)bytes);
    for (int64_t i = 0; exact && i < bytes; i++)
        sf[i] = (uint8_t)(0x28 + sf[i] % 4 * 8);
    return (nk_operand){.data = random_bytes((size_t)(rows * k / 2)),
                        .dtype = NK_E2M1X2,
                        .sf_layout = layout,
                        .row_stride = k / 2,
                        .sf = sf,
                        .sf_row_stride = cols};
}

/* Small integers. */
static nk_operand make_values(int64_t rows, int64_t k, nk_dtype dtype)
{
    float *values = malloc((size_t)(rows * k) * sizeof *values + 1);
    uint8_t *data = malloc((size_t)(rows * k) * 2 + 1);
    for (int64_t i = 0; i < rows * k; i++)
        values[i] = (float)((int)(random_bits() % 5) - 2);
    cpu_path_scalar.store(values, dtype, rows * k, data);
    free(values);
    return (nk_operand){.data = data, .dtype = dtype, .row_stride = 2 * k, .k_stride = 2};
}

static void drop(nk_operand *o)
{
    free((void *)(uintptr_t)o->data);
    free((void *)(uintptr_t)o->sf);
}

static void compare_sums(const char *what, nk_operand a, nk_operand b, int64_t m, int64_t n, int64_t k)
{
    static cpu_tile got, want;
    cpu_tile_gemm tile = {.a = &a, .b = &b, .mb = m, .nb = n, .k = k};
    cpu_path_scalar.gemm_tile(&tile, want);
    tested->gemm_tile(&tile, got);
    for (int64_t i = 0; i < m; i++)
        same_floats(what, got[i], want[i], (size_t)n);
    drop(&a);
    drop(&b);
}

static void compare_vector(nk_operand a, nk_operand b, int64_t n, int64_t k)
{
    static cpu_tile want;
    float *got = malloc((size_t)n * sizeof *got);
    cpu_tile_gemm tile = {.a = &a, .b = &b, .mb = 1, .nb = n, .k = k};
    cpu_path_scalar.gemm_tile(&tile, want);
    tested->gemv(&tile, got);
    same_floats("gemv", got, want[0], (size_t)n);
    free(got);
    drop(&a);
    drop(&b);
}

static void compare_products(void)
{
    static const int64_t sizes[][3] = {{1, 1, 16},      {2, 7, 32},      {9, 15, 496},     {8, 33, 528},
                                       {13, 100, 1040}, {128, 128, 512}, {3, 5, 16 * 1030}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        for (int layout = 0; layout < 2; layout++) {
            nk_sf_layout of = layout ? NK_SF_BLOCKED : NK_SF_LINEAR;
            compare_sums("codes", make_codes(m, k, of, false), make_codes(n, k, of, false), m, n, k);
            compare_sums("fp16 and codes", make_values(m, k, NK_F16), make_codes(n, k, of, true), m, n, k);
            compare_vector(make_codes(1, k, of, true), make_codes(n, k, of, true), n, k);
            compare_vector(make_values(1, k, NK_BF16), make_codes(n, k, of, true), n, k);
        }
        compare_sums("bf16", make_values(m, k, NK_BF16), make_values(n, k, NK_BF16), m, n, k);
        compare_sums("fp16", make_values(m, k, NK_F16), make_values(n, k, NK_F16), m, n, k);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Rows                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

#define COPY(values, count) memcpy(malloc((count) * sizeof *(values)), values, (count) * sizeof *(values))

/* Runs `call` with p each of the two paths and v a copy of the values; both have to end the same. */
#define BOTH(what, call)                                          \
    do {                                                          \
        float *results[2];                                        \
        for (int side = 0; side < 2; side++) {                    \
            const cpu_path *p = side ? tested : &cpu_path_scalar; \
            float *v = results[side] = COPY(values, count);       \
            call;                                                 \
        }                                                         \
        same_floats(what, results[1], results[0], count);         \
        free(results[0]);                                         \
        free(results[1]);                                         \
    } while (0)

static void activate_copy(const cpu_path *p, nk_activation activation, float *values, const float *up, size_t count)
{
    float *limited = COPY(up, count);
    p->activate(activation, values, limited, (int64_t)count);
    free(limited);
}

static void compare_rows(size_t count, int kind)
{
    float *values = malloc(count * sizeof *values), *other = malloc(count * sizeof *other);
    uint8_t *packed[2] = {malloc(count * 2), malloc(count * 2)};
    int64_t n = (int64_t)count;
    fill_floats(values, count, kind);
    fill_floats(other, count, kind);
    BOTH("scale", p->scale(v, other, NULL, n));
    BOTH("scale, bias", p->scale(v, other, values, n));
    BOTH("exp", p->exp(v, 0.5f, n));
    BOTH("sigmoid", p->sigmoid(values, n, v));
    BOTH("sqrt_softplus", p->sqrt_softplus(values, n, v));
    for (int i = 0; i <= NK_SWIGLU_OAI; i++) {
        BOTH("activate", activate_copy(p, (nk_activation){(nk_activation_kind)i, INFINITY, 1.702f}, v, other, count));
        BOTH("activate, limit", activate_copy(p, (nk_activation){(nk_activation_kind)i, 0.5f, 0.75f}, v, other, count));
    }
    for (int i = 0; i < 2; i++) {
        nk_dtype dtype = i ? NK_F16 : NK_BF16;
        BOTH("load", (p->store(values, dtype, n, packed[0]), p->load(packed[0], dtype, n, v)));
    }
    free(packed[0]);
    free(packed[1]);
    free(values);
    free(other);
}

static void compare_encoding(int64_t blocks, nk_dtype dtype, int kind, float s)
{
    size_t count = (size_t)blocks * NK_SF_VEC, size = dtype == NK_F32 ? 4 : 2;
    float *values = malloc(count * sizeof *values);
    uint8_t *from = malloc(count * size), *codes[2], *sf[2];
    cpu_encoder e = {.valid = s > 0, .to_sf = s * (1.0f / NK_E2M1_MAX), .inverse_s = 1.0f / s};
    fill_floats(values, count, kind);
    cpu_path_scalar.store(values, dtype, (int64_t)count, from);
    for (int side = 0; side < 2; side++) {
        const cpu_path *p = side ? tested : &cpu_path_scalar;
        p->encode(&e, from, dtype, blocks, codes[side] = malloc(count / 2), sf[side] = malloc(count / 16));
    }
    same_bytes("scales", sf[1], sf[0], count / 16);
    same_bytes("codes", codes[1], codes[0], count / 2);
    const float steps[] = {e.inverse_s, 0.013f, 0x1.FFFFFEp-7f}; /* the last has a mantissa of ones alone */
    for (int i = 0; s > 0 && i < 3; i++) {
        const cpu_encoder four_six = {.valid = true, .smallest = i == 1 ? 0.0123f : 0, .s2 = steps[i]};
        for (int side = 0; side < 2; side++) {
            const cpu_path *p = side ? tested : &cpu_path_scalar;
            p->encode_four_six(&four_six, from, dtype, blocks, codes[side], sf[side]);
        }
        same_bytes("scales of four_six", sf[1], sf[0], count / 16);
        same_bytes("codes of four_six", codes[1], codes[0], count / 2);
    }
    float amax[2] = {cpu_path_scalar.finite_amax(from, dtype, (int64_t)count),
                     tested->finite_amax(from, dtype, (int64_t)count)};
    same_floats("finite_amax", &amax[1], &amax[0], 1);

    uint8_t *any = random_bytes((size_t)(blocks + 15) / 16 * 16);
    BOTH("decode", p->decode(codes[0], any, s, blocks, v));
    for (int side = 0; side < 2; side++) {
        free(codes[side]);
        free(sf[side]);
    }
    free(any);
    free(from);
    free(values);
}

int main(void)
{
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        static const nk_dtype dtypes[] = {NK_F16, NK_BF16, NK_F32};
        static const float scales[] = {1, 1e-3f, 7e4f, 1e30f, FLT_MAX, 1e-38f, 0};
        tested = paths[i];
        compared = 0;
        if (!tested->available()) {
            printf("%s: not on this processor\n", tested->name);
            continue;
        }
        compare_products();
        for (int kind = 0; kind < KINDS; kind++) {
            for (size_t count = 1; count < 70; count++)
                compare_rows(count, kind);
            for (int64_t blocks = 1; blocks < 70; blocks++) /* 3 and 7: each type meets each scale */
                compare_encoding(blocks, dtypes[blocks % 3], kind, scales[blocks % 7]);
            for (int dtype = 0; dtype < 3; dtype++)
                compare_encoding(2048, dtypes[dtype], kind, 1);
        }
        printf("%s: %ld the same\n", tested->name, compared);
    }
    return 0;
}
