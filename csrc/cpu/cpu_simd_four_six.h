/* Encoding rows of blocks by the recipe four_six, in vectors: a bundle both ways, and of each block what is nearer. */
#ifndef NK_CPU_SIMD_FOUR_SIX_H
#define NK_CPU_SIMD_FOUR_SIX_H

#include "cpu_simd_encode.h"

/* What the bundles of a row have in common. t = 0 and 1: the largest magnitude becomes 6 and 4. */
typedef struct four_six {
    const cpu_encoder *encoder;
    float whole[2], inverse[2], inverse_rest[2];
    float most; /* magnitude of a usual bundle: `quotient` of a larger one may overflow to the other sign */
    bool usual; /* no divisor is one of those that `quotient` is not for */
} four_six;

/* x / divisor without a division, by an inverse of twice the bits. Near a tie of E2M1 or of E4M3 it is fl(x / divisor)
 * to the bit; tests/cpu/quotients.c tries every mantissa. A mantissa of ones alone is the exception. */
OPERATION vf quotient(vf x, vf inverse, vf inverse_rest) { return vf_fma(x, inverse, vf_mul(x, inverse_rest)); }

static inline bool is_usual(float divisor) { return (nk_bits_of_float(divisor) & 0x7FFFFF) != 0x7FFFFF; }

CPU_TARGET static four_six four_six_of(const cpu_encoder *e)
{
    four_six f = {.encoder = e, .usual = e->s2 > 0x1p-90f && e->s2 < 0x1p80f}; /* else something may be denormal */
    for (int t = 0; t < 2; t++) {
        f.whole[t] = fminf((t ? 4.0f : 6.0f) * e->s2, FLT_MAX);
        f.inverse[t] = 1 / f.whole[t];
        f.inverse_rest[t] = fmaf(f.inverse[t], -f.whole[t], 1) * f.inverse[t];
        f.usual = f.usual && is_usual(f.whole[t]);
    }
    f.most = NK_E4M3_MAX * f.whole[1];
    for (int mantissa = 8; mantissa < 16; mantissa++) /* of a scale factor */
        f.usual = f.usual && is_usual((float)mantissa * e->s2);
    return f;
}

/* The code as in vi_e2m1_of for x in [0, 7), and what it means. */
OPERATION vf vf_e2m1_of(vf v, vi *code)
{
    vi exponent = vi_srl(vi_of_bits(vf_max(v, vf_set(1))), 23);
    vf coarse = vf_by_exponent(exponent, 0x1p22f, 0x1p23f + 2, 0x1p24f + 8), sum = vf_add(v, coarse);
    *code = vi_of_bits(sum);
    return vf_sub(sum, coarse);
}

OPERATION vf squared_error(vf value, vf step, vf x)
{
    vf error = vf_sub(vf_mul(value, step), x);
    return vf_mul(error, error);
}

/* A bundle encoded both ways. */
typedef struct both_ways {
    vf errors[2][8];
    vi codes[2][8];
} both_ways;

/* Adds vector i of a bundle: `even` and `odd` are quotients. */
OPERATION void add_pairs(both_ways *b, int t, int i, const pairs *p, vf even, vf odd, vf step)
{
    vi even_code, odd_code;
    vf even_value = vf_e2m1_of(even, &even_code), odd_value = vf_e2m1_of(odd, &odd_code);
    b->codes[t][i] = vi_or(even_code, vi_sll(odd_code, 4));
    b->errors[t][i] = vf_add(squared_error(even_value, step, p->even), squared_error(odd_value, step, p->odd));
}

/* Where 4 leaves the smaller error; not where one is NaN. */
OPERATION vmask four_is_nearer(const both_ways *b)
{
    return vf_less(vf_sums_of_blocks(b->errors[1]), vf_sums_of_blocks(b->errors[0]));
}

OPERATION void store_nearer(const both_ways *b, vmask four, const vi signs[8], uint8_t *codes)
{
    float each[LANES];
    vf_store(each, vf_of_bits(vi_select(four, vi_set(-1), vi_set(0))));
    UNROLL for (int i = 0; i < 8; i++)
    {
        vmask block_four = vi_less(vi_of_bits(vf_of_blocks(each, i)), vi_set(0));
        vi made = vi_select(block_four, b->codes[1][i], b->codes[0][i]);
        vi_store_bytes(codes + i * LANES, vi_or(made, signs[i]));
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Any bundle                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The codes of blocks without a step are 0. */
CPU_TARGET static void clear_without_step(const int32_t steps[LANES], uint8_t *codes)
{
    for (int b = 0; b < LANES; b++) {
        if (steps[b] == 0) memset(codes + b * (NK_SF_VEC / 2), 0, NK_SF_VEC / 2);
    }
}

OPERATION void divide_bundle(const four_six *f, const uint8_t *from, nk_dtype dtype, uint8_t *codes, uint8_t *sf)
{
    vi largest = largest_of_blocks(from, dtype), scales[2], signs[8];
    float steps[2][LANES];
    both_ways b;
    for (int t = 0; t < 2; t++) {
        vf wanted = vf_max(vf_div(vf_of_bits(largest), vf_set(f->whole[t])), vf_set(f->encoder->smallest));
        scales[t] = vi_e4m3_of(vf_min(wanted, vf_set(NK_E4M3_MAX)));
        vf_store(steps[t], vf_min(vf_mul(vf_of_e4m3(scales[t]), vf_set(f->encoder->s2)), vf_set(FLT_MAX)));
        UNROLL for (int i = 0; i < 8; i++)
        {
            const vf step = vf_of_blocks(steps[t], i), six = vf_set(NK_E2M1_MAX);
            const pairs p = load_pairs(from + i * PAIRS * float_bytes(dtype), dtype);
            signs[i] = signs_of_pairs(&p);
            add_pairs(&b, t, i, &p, vf_min(vf_div(p.even, step), six), vf_min(vf_div(p.odd, step), six), step);
        }
    }
    vmask four = four_is_nearer(&b), poisoned = vi_less(vi_set(0x7F800000), largest);
    vi_store_bytes(sf, vi_select(poisoned, vi_set(NK_E4M3_NAN), vi_select(four, scales[1], scales[0])));
    store_nearer(&b, four, signs, codes);
    int32_t step[LANES];
    vi_store(step, vi_select(poisoned, vi_set(0), vi_of_bits(vf_select(four, vf_load(steps[1]), vf_load(steps[0])))));
    clear_without_step(step, codes);
}

CPU_TARGET static __attribute__((noinline)) void encode_any_bundle(const four_six *f, const uint8_t *from,
                                                                   nk_dtype dtype, uint8_t *codes, uint8_t *sf)
{
    if (dtype == NK_F32)
        divide_bundle(f, from, NK_F32, codes, sf);
    else if (dtype == NK_F16)
        divide_bundle(f, from, NK_F16, codes, sf);
    else
        divide_bundle(f, from, NK_BF16, codes, sf);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* A usual bundle: all of its scale factors are normal and less than the largest                                    */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The scale factors of a bundle, and what its elements are divided by. */
typedef struct bundle_steps {
    vi sf[2];
    ALIGNED float step[2][LANES], inverse[2][LANES], inverse_rest[2][LANES];
    bool usual;
} bundle_steps;

OPERATION void find_steps(const four_six *f, const uint8_t *from, nk_dtype dtype, bundle_steps *s)
{
    const vf largest = vf_of_bits(largest_of_blocks(from, dtype));
    UNROLL for (int t = 0; t < 2; t++)
    {
        vf wanted = quotient(largest, vf_set(f->inverse[t]), vf_set(f->inverse_rest[t]));
        wanted = vf_min(vf_max(wanted, vf_set(f->encoder->smallest)), vf_set(NK_E4M3_MAX));
        const vi rounded = vi_rounded(vi_of_bits(wanted), 20);
        s->sf[t] = vi_sub(rounded, vi_set((127 - 7) << 3));
        const vf step = vf_mul(vf_of_bits(vi_sll(rounded, 20)), vf_set(f->encoder->s2));
        const vf inverse = vf_div(vf_set(1), step);
        vf_store(s->step[t], step);
        vf_store(s->inverse[t], inverse);
        vf rest = vf_fma(inverse, vf_sub(vf_set(0), step), vf_set(1));
        vf_store(s->inverse_rest[t], vf_mul(rest, inverse));
    }
    /* 448 stands for all that is more. The scale factor of 6 is no larger than that of 4. */
    s->usual = f->usual && !vmask_any(vi_less(s->sf[0], vi_set(8))) &&
               !vmask_any(vi_less(vi_set(NK_E4M3_NAN - 2), s->sf[1])) &&
               !vmask_any(vi_less(vi_of_bits(vf_set(f->most)), vi_of_bits(largest)));
}

OPERATION void encode_usual_bundle(const bundle_steps *s, const uint8_t *from, nk_dtype dtype, uint8_t *codes,
                                   uint8_t *sf)
{
    both_ways b;
    vi signs[8];
    UNROLL for (int i = 0; i < 8; i++)
    {
        const pairs p = load_pairs(from + i * PAIRS * float_bytes(dtype), dtype);
        signs[i] = signs_of_pairs(&p);
        UNROLL for (int t = 0; t < 2; t++)
        {
            const vf inverse = vf_of_blocks(s->inverse[t], i), rest = vf_of_blocks(s->inverse_rest[t], i);
            add_pairs(&b, t, i, &p, quotient(p.even, inverse, rest), quotient(p.odd, inverse, rest),
                      vf_of_blocks(s->step[t], i));
        }
    }
    const vmask four = four_is_nearer(&b);
    vi_store_bytes(sf, vi_select(four, s->sf[1], s->sf[0]));
    store_nearer(&b, four, signs, codes);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Rows                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

OPERATION void encode_bundle_four_six(const four_six *f, const bundle_steps *s, const uint8_t *from, nk_dtype dtype,
                                      uint8_t *codes, uint8_t *sf)
{
    if (s->usual)
        encode_usual_bundle(s, from, dtype, codes, sf);
    else
        encode_any_bundle(f, from, dtype, codes, sf);
}

/* The steps of the next bundle are found while this one is encoded, as in encode_bundles. */
OPERATION void encode_bundles_four_six(const cpu_encoder *e, const uint8_t *from, nk_dtype dtype, int64_t blocks,
                                       uint8_t *codes, uint8_t *sf)
{
    const four_six f = four_six_of(e);
    const int64_t bytes = NK_SF_VEC * float_bytes(dtype);
    bundle_steps steps[2];
    if (blocks >= LANES) find_steps(&f, from, dtype, &steps[0]);
    for (int mine = 0; blocks >= LANES; blocks -= LANES, codes += BUNDLE / 2, sf += LANES, mine = !mine) {
        for (int64_t i = 0; i < LANES * bytes; i += 64)
            PREFETCH(from + ENCODE_AHEAD + i);
        if (blocks >= 2 * LANES) find_steps(&f, from + LANES * bytes, dtype, &steps[!mine]);
        encode_bundle_four_six(&f, &steps[mine], from, dtype, codes, sf);
        from += LANES * bytes;
    }
    if (blocks == 0) return;
    uint8_t rest[BUNDLE * sizeof(float)] = {0}, rest_codes[BUNDLE / 2], rest_sf[LANES];
    memcpy(rest, from, (size_t)(blocks * bytes));
    encode_any_bundle(&f, rest, dtype, rest_codes, rest_sf);
    memcpy(codes, rest_codes, (size_t)(blocks * NK_SF_VEC / 2));
    memcpy(sf, rest_sf, (size_t)blocks);
}

CPU_TARGET static void encode_four_six_row(const cpu_encoder *e, const uint8_t *from, nk_dtype dtype, int64_t blocks,
                                           uint8_t *codes, uint8_t *sf)
{
    if (dtype == NK_F32)
        encode_bundles_four_six(e, from, NK_F32, blocks, codes, sf);
    else if (dtype == NK_F16)
        encode_bundles_four_six(e, from, NK_F16, blocks, codes, sf);
    else
        encode_bundles_four_six(e, from, NK_BF16, blocks, codes, sf);
}

#endif
