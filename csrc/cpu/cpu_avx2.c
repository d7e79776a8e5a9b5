/* The AVX2 path: the operations that cpu_simd_tile.h and its siblings are written with. */
#include "cpu_path.h"

#ifdef CPU_X86
#include <immintrin.h>
#include <string.h>

#define CPU_TARGET __attribute__((target("avx2,fma,f16c")))
#define LANES 8
#define CODE_ROWS 4
#define CODE_VECTORS 1
#define VALUE_ROWS 4
#define VALUE_VECTORS 2
#define CPU_ROWS_FP16
#define OPERATION CPU_TARGET static inline __attribute__((always_inline))

typedef __m256 vf;
typedef __m256i vi;

OPERATION vf vf_set(float x) { return _mm256_set1_ps(x); }
OPERATION vf vf_load(const float *from) { return _mm256_loadu_ps(from); }
OPERATION void vf_store(float *to, vf x) { _mm256_storeu_ps(to, x); }
OPERATION vf vf_mul(vf x, vf y) { return _mm256_mul_ps(x, y); }
OPERATION vf vf_add(vf x, vf y) { return _mm256_add_ps(x, y); }
OPERATION vf vf_sub(vf x, vf y) { return _mm256_sub_ps(x, y); }
OPERATION vf vf_div(vf x, vf y) { return _mm256_div_ps(x, y); }
OPERATION vf vf_min(vf x, vf y) { return _mm256_min_ps(x, y); } /* y where x or y is NaN */
OPERATION vf vf_max(vf x, vf y) { return _mm256_max_ps(x, y); } /* y where x or y is NaN */
OPERATION vf vf_fma(vf x, vf y, vf z) { return _mm256_fmadd_ps(x, y, z); }
OPERATION float vf_sum(vf x)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
OPERATION vf vf_of_int(vi x) { return _mm256_cvtepi32_ps(x); }
OPERATION vf vf_of_bits(vi x) { return _mm256_castsi256_ps(x); }

OPERATION vi vi_set(int32_t x) { return _mm256_set1_epi32(x); }
OPERATION vi vi_load(const void *from) { return _mm256_loadu_si256(from); }
OPERATION void vi_store(void *to, vi x) { _mm256_storeu_si256(to, x); }
OPERATION vi vi_add(vi x, vi y) { return _mm256_add_epi32(x, y); }
OPERATION vi vi_of_bits(vf x) { return _mm256_castps_si256(x); }
OPERATION vi vi_max(vi x, vi y) { return _mm256_max_epi32(x, y); }
OPERATION vi vi_sub(vi x, vi y) { return _mm256_sub_epi32(x, y); }
OPERATION vi vi_sub_bytes(vi x, vi y) { return _mm256_sub_epi8(x, y); }
OPERATION vi vi_and(vi x, vi y) { return _mm256_and_si256(x, y); }
OPERATION vi vi_sll(vi x, int count) { return _mm256_slli_epi32(x, count); }
OPERATION vi vi_srl(vi x, int count) { return _mm256_srli_epi32(x, count); }
OPERATION vi vi_of_bytes(const uint8_t *from) { return _mm256_cvtepu8_epi32(_mm_loadu_si64(from)); }

typedef __m256i vmask;
OPERATION vmask vi_less(vi x, vi y) { return _mm256_cmpgt_epi32(y, x); }
OPERATION vmask vf_less(vf x, vf y)
{
    return _mm256_castps_si256(_mm256_cmp_ps(x, y, _CMP_LT_OQ));
} /* false where one is NaN */
OPERATION vf vf_select(vmask mask, vf yes, vf no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(mask)); }

OPERATION vi vi_select(vmask mask, vi yes, vi no) { return _mm256_blendv_epi8(no, yes, mask); }

/* Loads the first `words` words. The rest become 0 and are not read. */
OPERATION vi vi_load_some(const void *from, int64_t words)
{
    vi there = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)words), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_maskload_epi32(from, there);
}

/* Word j of vector i becomes word i of vector j. */
OPERATION void vi_transpose(vi x[LANES])
{
    vi y[LANES];
    _Pragma("GCC unroll 2") for (int i = 0; i < 8; i += 4)
    {
        vi low01 = _mm256_unpacklo_epi32(x[i], x[i + 1]), low23 = _mm256_unpacklo_epi32(x[i + 2], x[i + 3]);
        vi high01 = _mm256_unpackhi_epi32(x[i], x[i + 1]), high23 = _mm256_unpackhi_epi32(x[i + 2], x[i + 3]);
        y[i] = _mm256_unpacklo_epi64(low01, low23);
        y[i + 1] = _mm256_unpackhi_epi64(low01, low23);
        y[i + 2] = _mm256_unpacklo_epi64(high01, high23);
        y[i + 3] = _mm256_unpackhi_epi64(high01, high23);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    { /* half h of y[4 j + i] is word 4 h + i of rows 4 j .. 4 j + 3 */
        x[i] = _mm256_permute2x128_si256(y[i], y[4 + i], 0x20);
        x[4 + i] = _mm256_permute2x128_si256(y[i], y[4 + i], 0x31);
    }
}

/* The larger of two words, or of two pairs of unsigned 16-bit integers. */
OPERATION vi vi_larger(vi x, vi y, bool pairs) { return pairs ? _mm256_max_epu16(x, y) : vi_max(x, y); }

/* Of 8 blocks of 8 words, one to a vector: word i becomes the largest of block i. */
OPERATION vi vi_largest_of_blocks(vi x[8], bool pairs)
{
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    {
        x[i] = vi_larger(_mm256_permute2x128_si256(x[i], x[4 + i], 0x20),
                         _mm256_permute2x128_si256(x[i], x[4 + i], 0x31), pairs);
    }
    _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)
    {
        x[i] = vi_larger(_mm256_unpacklo_epi32(x[i], x[2 + i]), _mm256_unpackhi_epi32(x[i], x[2 + i]), pairs);
    }
    return vi_larger(_mm256_unpacklo_epi32(x[0], x[1]), _mm256_unpackhi_epi32(x[0], x[1]), pairs);
}

/* The same for sums: word k of a block is added to word k + 4, then k to k + 2 and k to k + 1. */
OPERATION vf vf_sums_of_blocks(const vf x[8])
{
    vf y[4], z[2];
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    {
        y[i] = vf_add(_mm256_permute2f128_ps(x[i], x[4 + i], 0x20), _mm256_permute2f128_ps(x[i], x[4 + i], 0x31));
    }
    _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)
    {
        __m256d even = _mm256_castps_pd(y[2 * i]), odd = _mm256_castps_pd(y[2 * i + 1]);
        z[i] = vf_add(_mm256_castpd_ps(_mm256_unpacklo_pd(even, odd)), _mm256_castpd_ps(_mm256_unpackhi_pd(even, odd)));
    }
    return vf_add(_mm256_shuffle_ps(z[0], z[1], 0x88), _mm256_shuffle_ps(z[0], z[1], 0xDD));
}

/* The factor of the block that a vector of 16-bit pairs holds. */
OPERATION vf vf_of_blocks(const float factors[LANES], int vector) { return vf_set(factors[vector]); }

/* Selects by an exponent of 127, 128 or 129, by its low bits. */
OPERATION vf vf_by_exponent(vi exponent, float zero, float one, float two)
{
    return _mm256_permutevar_ps(_mm256_setr_ps(one, two, 0, zero, one, two, 0, zero), exponent);
}

/* Elements 0, 2, 4 .. of x and then y, or 1, 3, 5 .. */
OPERATION vf vf_every_second(vf x, vf y, int first)
{
    vf mixed = first ? _mm256_shuffle_ps(x, y, 0xDD) : _mm256_shuffle_ps(x, y, 0x88);
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xD8));
}

OPERATION vi vi_or(vi x, vi y) { return _mm256_or_si256(x, y); }
OPERATION vi vi_add_i16(vi x, vi y) { return _mm256_add_epi16(x, y); }
OPERATION vi vi_max_i16(vi x, vi y) { return _mm256_max_epi16(x, y); }
/* Signed 16-bit integers multiplied, and added in pairs. */
OPERATION vi vi_madd_i16(vi x, vi y) { return _mm256_madd_epi16(x, y); }
OPERATION bool vmask_any(vmask mask) { return _mm256_movemask_epi8(mask) != 0; }
OPERATION void vi_store_bytes(uint8_t *to, vi x)
{
    vi fours = _mm256_shuffle_epi8(x, _mm256_set1_epi32(0x0C080400));
    _mm_storeu_si64(
        to, _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4))));
}

/* 2 e2m1 + 12 of every byte's low nibble */
OPERATION vi raised_of_nibbles(vi x)
{
    const vi table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return _mm256_shuffle_epi8(table, _mm256_and_si256(x, _mm256_set1_epi8(15)));
}

/* Nibbles to words. Only the low four bits of a word are defined. */
OPERATION vi vi_of_nibbles(const uint8_t *from)
{
    vi pairs = _mm256_cvtepu8_epi64(_mm_loadu_si32(from));
    return _mm256_or_si256(pairs, _mm256_slli_epi64(pairs, 28));
}

/* e2m1 of every word's low nibble. The permutation looks at the three low bits alone, which are the magnitude. */
OPERATION vf vf_of_e2m1(vi x)
{
    const vf table = _mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6);
    vi sign = _mm256_and_si256(_mm256_slli_epi32(x, 28), _mm256_set1_epi32(INT32_MIN));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(table, x), _mm256_castsi256_ps(sign));
}

/* fp16 in every word's low half */
OPERATION vf vf_of_half(vi x)
{
    vi halves = _mm256_and_si256(x, _mm256_set1_epi32(0xFFFF));
    vi packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

CPU_TARGET static void load_fp16(const uint8_t *from, int64_t count, float *to)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + 2 * i))));
    for (; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        to[i] = _cvtsh_ss(half);
    }
}

CPU_TARGET static void store_fp16(const float *from, int64_t count, uint8_t *to)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        _mm_storeu_si128((void *)(to + 2 * i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; i++) {
        uint16_t half = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}

/* Elements 4 half .. 4 half + 3, each twice. */
OPERATION vf vf_twice_each(vf x, int half)
{
    const vi lower = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar8x32_ps(x, _mm256_add_epi32(lower, _mm256_set1_epi32(4 * half)));
}

/* bias + the products of unsigned bytes u and signed bytes s, four to a word */
OPERATION vi dot_pair(vi bias, vi u0, vi s0, vi u1, vi s1)
{
    vi pairs = _mm256_add_epi16(_mm256_maddubs_epi16(u0, s0), _mm256_maddubs_epi16(u1, s1));
    return _mm256_add_epi32(bias, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* bias + sum over a block of codes[q] times the four signed bytes q of `elements` */
OPERATION vi dot_block(vi bias, const vi codes[4], const int8_t *elements)
{
    vi products[4];
    _Pragma("GCC unroll 4") for (int q = 0; q < 4; q++)
    {
        int32_t four;
        memcpy(&four, elements + 4 * q, 4);
        products[q] = _mm256_maddubs_epi16(codes[q], _mm256_set1_epi32(four));
    }
    vi pairs = _mm256_add_epi16(_mm256_add_epi16(products[0], products[1]),
                                _mm256_add_epi16(products[2], products[3])); /* at most 8 * 24 * 12 */
    return _mm256_add_epi32(bias, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#include "cpu_x86_codes.h"

#include "cpu_simd_blocks.h"
#include "cpu_simd_four_six.h"
#include "cpu_simd_tile.h"
#include "cpu_simd_vector.h"

static bool available(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

const cpu_path cpu_path_avx2 = {
    .name = "avx2",
    .why = "CPU tensors; AVX2",
    .available = available,
    .gemm_tile = sum_gemm_tile,
    .gemv = sum_gemv,
    CPU_ROWS,
};
#endif
