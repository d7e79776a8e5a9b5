/* Rows of blocks in vectors: what quantize, dequantize and A's rows of codes need. */
#ifndef NK_CPU_SIMD_BLOCKS_H
#define NK_CPU_SIMD_BLOCKS_H

#include "cpu_rows.h"

#include <float.h>

#define UNROLL _Pragma("GCC unroll 16")
#define ALIGNED _Alignas(64)

/* 2 e2m1 of the next four blocks (those of `blocks` that are there; the rest is 0) in the order of cpu_simd_tile.h, and
 * -12 times the sum of each block. */
CPU_TARGET static inline void decode_four_blocks(const uint8_t *codes, int64_t blocks, int8_t to[64], int32_t bias[4])
{
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i words = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(blocks < 4 ? 2 * (int)blocks : 8), words);
    __m256i packed = _mm256_maskload_epi32((const int *)(const void *)codes, there);
    __m256i even = _mm256_shuffle_epi8(table, _mm256_and_si256(packed, nibble));
    __m256i odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi32(packed, 4), nibble));
    __m256i first = _mm256_unpacklo_epi64(even, odd), second = _mm256_unpackhi_epi64(even, odd);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(to + 32), _mm256_permute2x128_si256(first, second, 0x31));

    /* Eight sums of two, raised by 24 to be unsigned, add up to a block's sum + 192. */
    __m256i raised = _mm256_add_epi8(_mm256_add_epi8(even, odd), _mm256_set1_epi8(24));
    __m256i sums = _mm256_sad_epu8(raised, _mm256_setzero_si256());
    __m256i scaled = _mm256_mul_epi32(_mm256_sub_epi32(sums, _mm256_set1_epi64x(192)), _mm256_set1_epi64x(-12));
    __m256i four = _mm256_permutevar8x32_epi32(scaled, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    _mm_storeu_si128((__m128i *)(void *)bias, _mm256_castsi256_si128(four));
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* E4M3                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* x: scale bytes without their bit 7 */
OPERATION vf vf_of_e4m3(vi x)
{
    vf subnormal = vf_mul(vf_of_int(x), vf_set(0x1p-9f));
    vf normal = vf_of_bits(vi_add(vi_sll(x, 20), vi_set((127 - 7) << 23)));
    vf number = vf_select(vi_less(x, vi_set(8)), subnormal, normal);
    return vf_select(vi_less(x, vi_set(NK_E4M3_NAN)), number, vf_set(NAN));
}

/* Positive floats to the bits of ones with `dropped` bits fewer, to nearest even; exponents stay as they are. */
OPERATION vi vi_rounded(vi bits, int dropped)
{
    vi odd = vi_and(vi_srl(bits, dropped), vi_set(1));
    return vi_srl(vi_add(vi_add(bits, vi_set((1 << (dropped - 1)) - 1)), odd), dropped);
}

/* Small positive floats in units of the last place of `ones`, to nearest even. */
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

/* Any x but NaN. With p the power of two in [1, 4] that v begins at, v
 * counts in steps of p / 2, one unit in the last place of 2^22 p, and each doubling of p is two codes: the exponent of
 * 2^22 p + v, taken twice. The 6 more steps make its bias a multiple of 16. */
OPERATION vi vi_e2m1_of(vf x)
{
    vf v = vf_magnitude(x, NK_E2M1_MAX);
    vi power = vi_and(vi_of_bits(vf_max(v, vf_set(1))), vi_set(0x7F800000));
    vi counted = vi_of_bits(vf_add(v, vf_of_bits(vi_add(power, vi_set((22 << 23) + 6)))));
    return vi_pick(vi_set(7), vi_add(counted, vi_srl(counted, 22)), vi_srl(vi_of_bits(x), 28));
}
_Static_assert((2 * (127 + 22) + 6) % 16 == 0, "vi_e2m1_of");

/* ---------------------------------------------------------------------------------------------------------------- */
/* Rows                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Magnitudes as integers: those order as the floats do, infinity and NaN after all. */
OPERATION vi magnitudes(const float *values) { return vi_and(vi_load(values), vi_set(INT32_MAX)); }

CPU_TARGET static float finite_amax_row(const float *values, int64_t count)
{
    uint32_t lanes[LANES], amax = 0;
    vi most = vi_set(0);
    for (int64_t i = 0; i < count; i += LANES) {
        vi magnitude = magnitudes(values + i);
        most = vi_max(most, vi_select(vi_less(magnitude, vi_set(0x7F800000)), magnitude, vi_set(0)));
    }
    vi_store(lanes, most);
    for (int i = 0; i < LANES; i++)
        amax = amax > lanes[i] ? amax : lanes[i];
    return float_of_bits(amax);
}

#define GROUP 64 /* blocks: the divisions of some vectors of them overlap */

/* What a block's elements are multiplied by, and which bits of their codes stay: none where the scale is 0 or NaN. */
typedef struct block_scales {
    ALIGNED float to_code[GROUP];
    ALIGNED int32_t mask[GROUP], sf[GROUP];
} block_scales;

/* `amax`: as integers, of LANES blocks from b */
OPERATION void scale_blocks(const cpu_encoder *e, vi amax, int64_t b, block_scales *scales)
{
    vi sf = vi_e4m3_of(vf_min(vf_mul(vf_of_bits(amax), vf_set(e->to_sf)), vf_set(NK_E4M3_MAX)));
    sf = vi_select(vi_less(vi_set(0x7F800000), amax), vi_set(NK_E4M3_NAN), sf);
    vf to_code = vf_min(vf_div(vf_set(1), vf_mul(vf_of_e4m3(sf), vf_set(e->inverse_s))), vf_set(FLT_MAX));
    /* The least number there is makes no other codes than 0 does, but an infinity saturates. */
    vf_store(&scales->to_code[b], vf_max(to_code, vf_set(0x1p-149f)));
    vi_store(&scales->sf[b], sf);
    vi usable = vi_select(vi_less(sf, vi_set(NK_E4M3_NAN)), vi_set(15), vi_set(0));
    vi_store(&scales->mask[b], vi_select(vi_less(vi_set(0), sf), usable, vi_set(0)));
}

/* Vectors of LANES blocks; past the last block they repeat it. */
CPU_TARGET static void scale_group(const cpu_encoder *e, const float *values, int64_t blocks, block_scales *scales)
{
    for (int64_t b0 = 0; b0 < blocks; b0 += LANES) {
        vi row[LANES];
        UNROLL for (int64_t b = 0; b < LANES; b++)
        {
            const float *block = values + cpu_min(b0 + b, blocks - 1) * NK_SF_VEC;
            row[b] = magnitudes(block);
            UNROLL for (int i = LANES; i < NK_SF_VEC; i += LANES) row[b] = vi_max(row[b], magnitudes(block + i));
        }
        scale_blocks(e, vi_max_of_each(row), b0, scales);
    }
}

OPERATION void encode_block(const float *values, float to_code, int32_t mask, uint8_t *codes)
{
    UNROLL for (int i = 0; i < NK_SF_VEC; i += LANES)
    {
        vi code = vi_e2m1_of(vf_mul(vf_load(values + i), vf_set(to_code)));
        vi_store_nibbles(codes + i / 2, vi_and(code, vi_set(mask)));
    }
}

CPU_TARGET static void encode_row(const cpu_encoder *e, const float *values, int64_t blocks, uint8_t *codes,
                                  uint8_t *sf)
{
    block_scales scales;
    if (!e->valid) {
        memset(codes, 0, (size_t)blocks * NK_SF_VEC / 2);
        memset(sf, NK_E4M3_NAN, (size_t)blocks);
        return;
    }
    while (blocks > 0) {
        int64_t count = cpu_min(GROUP, blocks);
        scale_group(e, values, count, &scales);
        for (int64_t b = 0; b < count; b++)
            encode_block(values + b * NK_SF_VEC, scales.to_code[b], scales.mask[b], codes + b * (NK_SF_VEC / 2));
        for (int64_t b = 0; b < count; b++)
            sf[b] = (uint8_t)scales.sf[b];
        blocks -= count;
        values += count * NK_SF_VEC;
        codes += count * (NK_SF_VEC / 2);
        sf += count;
    }
}

CPU_TARGET static void decode_row(const uint8_t *codes, const uint8_t *sf, int64_t blocks, float *values)
{
    for (int64_t at = 0; at < blocks * NK_SF_VEC; at += LANES) {
        vf scale = vf_set(e4m3_to_float(sf[at / NK_SF_VEC]));
        vf_store(values + at, vf_mul(vf_of_e2m1(vi_of_nibbles(codes + at / 2)), scale));
    }
}

#endif
