/* The operations of the AVX-512 paths, which cpu_simd_tile.h and its siblings are written with. CPU_TARGET says whether
 * there is VNNI. */
#ifndef NK_CPU_AVX512_H
#define NK_CPU_AVX512_H

#include <immintrin.h>
#include <string.h>

#define LANES 16
#define CODE_ROWS 8
#define CODE_VECTORS 2
#define VALUE_ROWS 8
#define VALUE_VECTORS 2
#define CPU_ROWS_FP16
#define OPERATION CPU_TARGET static inline __attribute__((always_inline))

typedef __m512 vf;
typedef __m512i vi;

OPERATION vf vf_set(float x) { return _mm512_set1_ps(x); }
OPERATION vf vf_load(const float *from) { return _mm512_loadu_ps(from); }
OPERATION void vf_store(float *to, vf x) { _mm512_storeu_ps(to, x); }
OPERATION vf vf_mul(vf x, vf y) { return _mm512_mul_ps(x, y); }
OPERATION vf vf_add(vf x, vf y) { return _mm512_add_ps(x, y); }
OPERATION vf vf_sub(vf x, vf y) { return _mm512_sub_ps(x, y); }
OPERATION vf vf_div(vf x, vf y) { return _mm512_div_ps(x, y); }
OPERATION vf vf_min(vf x, vf y) { return _mm512_min_ps(x, y); } /* y where x or y is NaN */
OPERATION vf vf_max(vf x, vf y) { return _mm512_max_ps(x, y); } /* y where x or y is NaN */
OPERATION vf vf_fma(vf x, vf y, vf z) { return _mm512_fmadd_ps(x, y, z); }
OPERATION float vf_sum(vf x) { return _mm512_reduce_add_ps(x); }
OPERATION vf vf_of_int(vi x) { return _mm512_cvtepi32_ps(x); }
OPERATION vf vf_of_bits(vi x) { return _mm512_castsi512_ps(x); }

OPERATION vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
OPERATION vi vi_load(const void *from) { return _mm512_loadu_si512(from); }
OPERATION void vi_store(void *to, vi x) { _mm512_storeu_si512(to, x); }
OPERATION vi vi_add(vi x, vi y) { return _mm512_add_epi32(x, y); }
OPERATION vi vi_of_bits(vf x) { return _mm512_castps_si512(x); }
OPERATION vi vi_max(vi x, vi y) { return _mm512_max_epi32(x, y); }
OPERATION vi vi_sub(vi x, vi y) { return _mm512_sub_epi32(x, y); }
OPERATION vi vi_sub_bytes(vi x, vi y) { return _mm512_sub_epi8(x, y); }
OPERATION vi vi_and(vi x, vi y) { return _mm512_and_si512(x, y); }
OPERATION vi vi_sll(vi x, int count) { return _mm512_slli_epi32(x, (unsigned)count); }
OPERATION vi vi_srl(vi x, int count) { return _mm512_srli_epi32(x, (unsigned)count); }
OPERATION vi vi_of_bytes(const uint8_t *from) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)from)); }

typedef __mmask16 vmask;
OPERATION vmask vi_less(vi x, vi y) { return _mm512_cmplt_epi32_mask(x, y); }
OPERATION vmask vf_less(vf x, vf y) { return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ); } /* false where one is NaN */
OPERATION vf vf_select(vmask mask, vf yes, vf no) { return _mm512_mask_blend_ps(mask, no, yes); }

OPERATION vi vi_select(vmask mask, vi yes, vi no) { return _mm512_mask_blend_epi32(mask, no, yes); }

/* Loads the first `words` words. The rest become 0 and are not read. */
OPERATION vi vi_load_some(const void *from, int64_t words)
{
    return _mm512_maskz_loadu_epi32((__mmask16)((1u << words) - 1), from);
}

/* Word j of vector i becomes word i of vector j. */
OPERATION void vi_transpose(vi x[LANES])
{
    vi y[LANES];
    _Pragma("GCC unroll 4") for (int i = 0; i < 16; i += 4)
    {
        vi low01 = _mm512_unpacklo_epi32(x[i], x[i + 1]), low23 = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]);
        vi high01 = _mm512_unpackhi_epi32(x[i], x[i + 1]), high23 = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
        y[i] = _mm512_unpacklo_epi64(low01, low23);
        y[i + 1] = _mm512_unpackhi_epi64(low01, low23);
        y[i + 2] = _mm512_unpacklo_epi64(high01, high23);
        y[i + 3] = _mm512_unpackhi_epi64(high01, high23);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    { /* quarter q of y[4 j + i] is word 4 q + i of rows 4 j .. 4 j + 3 */
        vi even01 = _mm512_shuffle_i32x4(y[i], y[4 + i], 0x88), odd01 = _mm512_shuffle_i32x4(y[i], y[4 + i], 0xDD);
        vi even23 = _mm512_shuffle_i32x4(y[8 + i], y[12 + i], 0x88);
        vi odd23 = _mm512_shuffle_i32x4(y[8 + i], y[12 + i], 0xDD);
        x[i] = _mm512_shuffle_i32x4(even01, even23, 0x88);
        x[8 + i] = _mm512_shuffle_i32x4(even01, even23, 0xDD);
        x[4 + i] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
        x[12 + i] = _mm512_shuffle_i32x4(odd01, odd23, 0xDD);
    }
}

/* The larger of two words, or of two pairs of unsigned 16-bit integers. */
OPERATION vi vi_larger(vi x, vi y, bool pairs) { return pairs ? _mm512_max_epu16(x, y) : vi_max(x, y); }

/* Of 16 blocks of 8 words, two to a vector: word i becomes the largest of block i. */
OPERATION vi vi_largest_of_blocks(vi x[8], bool pairs)
{
    _Pragma("GCC unroll 2") for (int i = 0; i < 8; i += 4)
    {
        vi low = vi_larger(_mm512_unpacklo_epi32(x[i], x[i + 2]), _mm512_unpackhi_epi32(x[i], x[i + 2]), pairs);
        vi high =
            vi_larger(_mm512_unpacklo_epi32(x[i + 1], x[i + 3]), _mm512_unpackhi_epi32(x[i + 1], x[i + 3]), pairs);
        x[i] = vi_larger(_mm512_unpacklo_epi32(low, high), _mm512_unpackhi_epi32(low, high), pairs);
    } /* word j of each quarter: of x[i + j] */
    vi all = vi_larger(_mm512_shuffle_i32x4(x[0], x[4], 0x88), _mm512_shuffle_i32x4(x[0], x[4], 0xDD), pairs);
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15), all);
}

/* The same for sums: word k of a block is added to word k + 4, then k to k + 2 and k to k + 1. */
OPERATION vf vf_sums_of_blocks(const vf x[8])
{
    vf y[4], z[2];
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    { /* quarter q: of block 4 i + q */
        y[i] = vf_add(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x88),
                      _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xDD));
    }
    _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)
    {
        __m512d even = _mm512_castps_pd(y[2 * i]), odd = _mm512_castps_pd(y[2 * i + 1]);
        z[i] = vf_add(_mm512_castpd_ps(_mm512_unpacklo_pd(even, odd)), _mm512_castpd_ps(_mm512_unpackhi_pd(even, odd)));
    }
    vf all = vf_add(_mm512_shuffle_ps(z[0], z[1], 0x88), _mm512_shuffle_ps(z[0], z[1], 0xDD));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), all);
}

/* The factors of the blocks that a vector of 16-bit pairs holds. */
OPERATION vf vf_of_blocks(const float factors[LANES], int vector)
{
    const vi lower = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lower, _mm512_set1_epi32(2 * vector)), vf_load(factors));
}

/* Selects by an exponent of 127, 128 or 129, by its low bits. */
OPERATION vf vf_by_exponent(vi exponent, float zero, float one, float two)
{
    return _mm512_permutevar_ps(_mm512_setr4_ps(one, two, 0, zero), exponent);
}

/* Elements 0, 2, 4 .. of x and then y, or 1, 3, 5 .. */
OPERATION vf vf_every_second(vf x, vf y, int first)
{
    const vi even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(x, _mm512_add_epi32(even, _mm512_set1_epi32(first)), y);
}

OPERATION vi vi_or(vi x, vi y) { return _mm512_or_si512(x, y); }
OPERATION vi vi_add_i16(vi x, vi y) { return _mm512_add_epi16(x, y); }
OPERATION vi vi_max_i16(vi x, vi y) { return _mm512_max_epi16(x, y); }
/* Signed 16-bit integers multiplied, and added in pairs. */
OPERATION vi vi_madd_i16(vi x, vi y) { return _mm512_madd_epi16(x, y); }
OPERATION bool vmask_any(vmask mask) { return mask != 0; }
OPERATION void vi_store_bytes(uint8_t *to, vi x) { _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8(x)); }

/* 2 e2m1 + 12 of every byte's low nibble */
OPERATION vi raised_of_nibbles(vi x)
{
    const vi table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return _mm512_shuffle_epi8(table, _mm512_and_si512(x, _mm512_set1_epi8(15)));
}

/* Nibbles to words. Only the low four bits of a word are defined. */
OPERATION vi vi_of_nibbles(const uint8_t *from)
{
    vi pairs = _mm512_cvtepu8_epi64(_mm_loadu_si64(from));
    return _mm512_or_si512(pairs, _mm512_slli_epi64(pairs, 28));
}

/* e2m1 of every word's low nibble */
OPERATION vf vf_of_e2m1(vi x)
{
    const vf table = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_permutexvar_ps(x, table);
}

/* fp16 in every word's low half */
OPERATION vf vf_of_half(vi x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }

CPU_TARGET static void load_fp16(const uint8_t *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i += LANES) {
        __mmask16 mask = (__mmask16)(count - i >= LANES ? 0xFFFF : (1u << (count - i)) - 1);
        _mm512_mask_storeu_ps(to + i, mask, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from + 2 * i)));
    }
}

CPU_TARGET static void store_fp16(const float *from, int64_t count, uint8_t *to)
{
    for (int64_t i = 0; i < count; i += LANES) {
        __mmask16 mask = (__mmask16)(count - i >= LANES ? 0xFFFF : (1u << (count - i)) - 1);
        __m256i halves = _mm512_cvtps_ph(_mm512_maskz_loadu_ps(mask, from + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_mask_storeu_epi16(to + 2 * i, mask, halves);
    }
}

/* Elements 8 half .. 8 half + 7, each twice. */
OPERATION vf vf_twice_each(vf x, int half)
{
    const vi lower = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lower, _mm512_set1_epi32(8 * half)), x);
}

/* bias + the products of unsigned bytes u and signed bytes s, four to a word */
OPERATION vi dot_pair(vi bias, vi u0, vi s0, vi u1, vi s1)
{
#ifdef CPU_VNNI
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(bias, u0, s0), u1, s1);
#else
    vi pairs = _mm512_add_epi16(_mm512_maddubs_epi16(u0, s0), _mm512_maddubs_epi16(u1, s1));
    return _mm512_add_epi32(bias, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

/* bias + sum over a block of codes[q] times the four signed bytes q of `elements` */
OPERATION vi dot_block(vi bias, const vi codes[4], const int8_t *elements)
{
    vi factor[4];
    _Pragma("GCC unroll 4") for (int q = 0; q < 4; q++)
    {
        int32_t four;
        memcpy(&four, elements + 4 * q, 4);
        factor[q] = _mm512_set1_epi32(four);
    }
#ifdef CPU_VNNI
    for (int q = 0; q < 4; q++)
        bias = _mm512_dpbusd_epi32(bias, codes[q], factor[q]);
    return bias;
#else
    vi sum01 = _mm512_add_epi16(_mm512_maddubs_epi16(codes[0], factor[0]), _mm512_maddubs_epi16(codes[1], factor[1]));
    vi sum23 = _mm512_add_epi16(_mm512_maddubs_epi16(codes[2], factor[2]), _mm512_maddubs_epi16(codes[3], factor[3]));
    vi pairs = _mm512_add_epi16(sum01, sum23); /* at most 8 * 24 * 12 */
    return _mm512_add_epi32(bias, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

#include "cpu_x86_codes.h"

#include "cpu_simd_blocks.h"
#include "cpu_simd_four_six.h"
#include "cpu_simd_tile.h"
#include "cpu_simd_vector.h"

#endif
