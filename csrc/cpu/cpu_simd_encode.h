/* Encoding rows of blocks, in vectors. A vector of pairs has LANES words with two elements each: even ones in the low
 * halves, odd ones in the high halves. A bundle is LANES blocks, on every path 8 vectors of pairs: it has one vector of
 * scale factors. The codes of a pair are one byte. */
#ifndef NK_CPU_SIMD_ENCODE_H
#define NK_CPU_SIMD_ENCODE_H

#include "cpu_operand.h"
#include "cpu_simd_blocks.h"

#define PAIRS (2 * LANES) /* elements of a vector of pairs */
#define BUNDLE (NK_SF_VEC * LANES)
#define ENCODE_AHEAD 4096 /* bytes to prefetch */

_Static_assert(BUNDLE == 8 * PAIRS, "a bundle is 8 vectors of pairs");

/* Elements without their signs, and their signs in bits 15 and 31. */
typedef struct pairs {
    vf even, odd;
    vi signs;
} pairs;

OPERATION pairs load_pairs(const uint8_t *from, nk_dtype dtype)
{
    const vi upper = vi_set((int32_t)0xFFFF0000), magnitude = vi_set(0x7FFF7FFF);
    if (dtype == NK_F32) {
        vf x = vf_load((const float *)(const void *)from), y = vf_load((const float *)(const void *)from + LANES);
        vi even = vi_of_bits(vf_every_second(x, y, 0)), odd = vi_of_bits(vf_every_second(x, y, 1));
        const vi number = vi_set(INT32_MAX);
        return (pairs){vf_of_bits(vi_and(even, number)), vf_of_bits(vi_and(odd, number)),
                       vi_or(vi_srl(even, 16), vi_and(odd, upper))};
    }
    vi words = vi_load(from), numbers = vi_and(words, magnitude);
    if (dtype == NK_F16) return (pairs){vf_of_half(numbers), vf_of_half(vi_srl(numbers, 16)), words};
    return (pairs){vf_of_bits(vi_sll(numbers, 16)), vf_of_bits(vi_and(numbers, upper)), words};
}

/* The largest magnitude of each block of a bundle, as the bits of a float. They compare as floats do; infinity and NaN
 * are larger than all. */
OPERATION vi largest_of_blocks(const uint8_t *from, nk_dtype dtype)
{
    vi x[8];
    UNROLL for (int i = 0; i < 8; i++)
    {
        const uint8_t *at = from + i * PAIRS * float_bytes(dtype);
        if (dtype == NK_F32) {
            pairs p = load_pairs(at, dtype);
            x[i] = vi_max(vi_of_bits(p.even), vi_of_bits(p.odd));
        } else {
            x[i] = vi_and(vi_load(at), vi_set(0x7FFF7FFF));
        }
    }
    vi largest = vi_largest_of_blocks(x, dtype != NK_F32);
    if (dtype == NK_F32) return largest;
    largest = vi_larger(largest, vi_srl(largest, 16), true);
    return dtype == NK_F16 ? vi_of_bits(vf_of_half(largest)) : vi_sll(largest, 16);
}

/* Rounds positive floats to nearest even, to `dropped` bits less. Exponents keep their bias. */
OPERATION vi vi_rounded(vi bits, int dropped)
{
    vi odd = vi_and(vi_srl(bits, dropped), vi_set(1));
    return vi_srl(vi_add(vi_add(bits, vi_set((1 << (dropped - 1)) - 1)), odd), dropped);
}

/* How many ulps of `ones` small positive floats are, to nearest even. */
OPERATION vi vi_counted(vf x, float ones)
{
    return vi_sub(vi_of_bits(vf_add(x, vf_set(ones))), vi_of_bits(vf_set(ones)));
}

/* x in [0, 448]; see e4m3_of_float */
OPERATION vi vi_e4m3_of(vf x)
{
    vi normal = vi_sub(vi_rounded(vi_of_bits(x), 20), vi_set((127 - 7) << 3));
    return vi_select(vi_less(vi_of_bits(x), vi_of_bits(vf_set(0x1p-6f))), vi_counted(x, 0x1p14f), normal);
}

/* The low byte of each word becomes the code of the magnitude x, which may be infinite. p = 1, 2 or 4 is the power of
 * two of x, or 1 where that is less. The code is x / (p / 2) + 0, 2 or 4, rounded; p / 2 is one ulp of 2^22 p. */
OPERATION vi vi_e2m1_of(vf x)
{
    vf v = vf_min(x, vf_set(NK_E2M1_MAX));
    vi exponent = vi_srl(vi_of_bits(vf_max(v, vf_set(1))), 23);
    return vi_of_bits(vf_add(v, vf_by_exponent(exponent, 0x1p22f, 0x1p23f + 2, 0x1p24f + 8)));
}

/* The signs of two codes, in bits 3 and 7. */
OPERATION vi signs_of_pairs(const pairs *p)
{
    /* The halves are 0 or -2^15. Multiplied by -1 and -16 and added they set bits 15 and 19. */
    vi signs = vi_madd_i16(vi_and(p->signs, vi_set((int32_t)0x80008000)), vi_set((int32_t)0xFFF0FFFF));
    return vi_srl(signs, 12);
}

OPERATION void encode_block_pairs(const uint8_t *from, nk_dtype dtype, vf to_code, uint8_t *codes)
{
    pairs p = load_pairs(from, dtype);
    vi even = vi_e2m1_of(vf_mul(p.even, to_code)), odd = vi_e2m1_of(vf_mul(p.odd, to_code));
    vi_store_bytes(codes, vi_or(vi_or(even, vi_sll(odd, 4)), signs_of_pairs(&p)));
}

/* The scale factors of a bundle, and what its elements are multiplied by. */
typedef struct bundle_scales {
    vi sf;
    float to_code[LANES];
} bundle_scales;

OPERATION bundle_scales scale_bundle(const cpu_encoder *e, const uint8_t *from, nk_dtype dtype)
{
    vi largest = largest_of_blocks(from, dtype);
    vf wanted = vf_max(vf_mul(vf_of_bits(largest), vf_set(e->to_sf)), vf_set(e->smallest));
    vi sf = vi_e4m3_of(vf_min(wanted, vf_set(NK_E4M3_MAX)));
    sf = vi_select(vi_less(vi_set(0x7F800000), largest), vi_set(NK_E4M3_NAN), sf);
    vf to_code = vf_min(vf_div(vf_set(1), vf_mul(vf_of_e4m3(sf), vf_set(e->inverse_s))), vf_set(FLT_MAX));
    /* The smallest positive float instead of 0: finite elements get the code 0 as well, but an infinity saturates. */
    bundle_scales scales = {.sf = sf};
    vf_store(scales.to_code, vf_max(to_code, vf_set(0x1p-149f)));
    return scales;
}

/* The codes of blocks whose scale factor is 0 or NaN are 0. */
CPU_TARGET static __attribute__((noinline)) void clear_unusable(const uint8_t sf[LANES], uint8_t *codes)
{
    for (int b = 0; b < LANES; b++) {
        if (sf[b] == 0 || sf[b] == NK_E4M3_NAN) memset(codes + b * (NK_SF_VEC / 2), 0, NK_SF_VEC / 2);
    }
}

OPERATION void encode_bundle(const uint8_t *from, nk_dtype dtype, const bundle_scales *scales, uint8_t *codes,
                             uint8_t *sf)
{
    vi_store_bytes(sf, scales->sf);
    UNROLL for (int i = 0; i < 8; i++)
    {
        encode_block_pairs(from + i * PAIRS * float_bytes(dtype), dtype, vf_of_blocks(scales->to_code, i),
                           codes + i * LANES);
    }
    vi unusable = vi_and(vi_sub(scales->sf, vi_set(1)), vi_set(0xFF));
    if (vmask_any(vi_less(vi_set(NK_E4M3_NAN - 2), unusable))) clear_unusable(sf, codes);
}

/* The scale factors of the next bundle are computed while this one is encoded, since they are a long chain of
 * operations that each wait for the one before. */
OPERATION void encode_bundles(const cpu_encoder *e, const uint8_t *from, nk_dtype dtype, int64_t blocks, uint8_t *codes,
                              uint8_t *sf)
{
    int64_t bytes = NK_SF_VEC * float_bytes(dtype);
    bundle_scales next = {0};
    if (blocks >= LANES) next = scale_bundle(e, from, dtype);
    for (; blocks >= LANES; blocks -= LANES) {
        bundle_scales mine = next;
        for (int64_t i = 0; i < LANES * bytes; i += 64)
            PREFETCH(from + ENCODE_AHEAD + i);
        if (blocks >= 2 * LANES) next = scale_bundle(e, from + LANES * bytes, dtype);
        encode_bundle(from, dtype, &mine, codes, sf);
        from += LANES * bytes;
        codes += BUNDLE / 2;
        sf += LANES;
    }
    if (blocks == 0) return;
    uint8_t rest[BUNDLE * sizeof(float)] = {0}, rest_codes[BUNDLE / 2], rest_sf[LANES];
    memcpy(rest, from, (size_t)(blocks * bytes));
    next = scale_bundle(e, rest, dtype);
    encode_bundle(rest, dtype, &next, rest_codes, rest_sf);
    memcpy(codes, rest_codes, (size_t)(blocks * NK_SF_VEC / 2));
    memcpy(sf, rest_sf, (size_t)blocks);
}

CPU_TARGET static void encode_row(const cpu_encoder *e, const uint8_t *from, nk_dtype dtype, int64_t blocks,
                                  uint8_t *codes, uint8_t *sf)
{
    if (!e->valid) {
        memset(codes, 0, (size_t)blocks * NK_SF_VEC / 2);
        memset(sf, NK_E4M3_NAN, (size_t)blocks);
    } else if (dtype == NK_F32) {
        encode_bundles(e, from, NK_F32, blocks, codes, sf);
    } else if (dtype == NK_F16) {
        encode_bundles(e, from, NK_F16, blocks, codes, sf);
    } else {
        encode_bundles(e, from, NK_BF16, blocks, codes, sf);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The largest                                                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Magnitudes compare as integers do. Adding this makes those that are not finite negative, so less than any finite one.
 */
static inline int32_t past_finite(nk_dtype dtype)
{
    return dtype == NK_F32 ? 0x00800000 : dtype == NK_F16 ? 0x04000400 : 0x00800080;
}

OPERATION vi larger_finite(vi most, vi x, nk_dtype dtype)
{
    vi raise = vi_set(past_finite(dtype));
    if (dtype == NK_F32) return vi_max(most, vi_add(vi_and(x, vi_set(INT32_MAX)), raise));
    return vi_max_i16(most, vi_add_i16(vi_and(x, vi_set(0x7FFF7FFF)), raise));
}

OPERATION vi largest_finite(const uint8_t *from, nk_dtype dtype, int64_t count)
{
    int64_t bytes = count * float_bytes(dtype), at = 0;
    vi most[2] = {vi_set(past_finite(dtype)), vi_set(past_finite(dtype))};
    for (; at + 8 * LANES <= bytes; at += 8 * LANES) {
        UNROLL for (int i = 0; i < 2; i++)
        {
            PREFETCH(from + at + 4 * LANES * i + ENCODE_AHEAD);
            most[i] = larger_finite(most[i], vi_load(from + at + 4 * LANES * i), dtype);
        }
    }
    for (; at < bytes; at += 4 * LANES)
        most[0] = larger_finite(most[0], vi_load_some(from + at, cpu_min(LANES, (bytes - at) / 4)), dtype);
    return dtype == NK_F32 ? vi_max(most[0], most[1]) : vi_max_i16(most[0], most[1]);
}

CPU_TARGET static float finite_amax_row(const uint8_t *from, nk_dtype dtype, int64_t count)
{
    int32_t lanes[LANES], most = 0;
    int16_t halves[2 * LANES];
    if (dtype == NK_F32) {
        vi_store(lanes, vi_sub(largest_finite(from, NK_F32, count), vi_set(past_finite(NK_F32))));
        for (int i = 0; i < LANES; i++)
            most = most > lanes[i] ? most : lanes[i];
        return nk_float_of_bits((uint32_t)most);
    }
    vi found = dtype == NK_F16 ? largest_finite(from, NK_F16, count) : largest_finite(from, NK_BF16, count);
    /* No half borrows from the other, since each is at least what is subtracted. */
    vi_store(halves, vi_sub(found, vi_set(past_finite(dtype))));
    for (int i = 0; i < 2 * LANES; i++)
        most = most > halves[i] ? most : halves[i];
    return dtype == NK_F16 ? fp16_to_float((uint16_t)most) : bf16_to_float((uint16_t)most);
}

#endif
