/* The operations of the NEON paths, which cpu_simd_tile.h and its siblings are written with. CPU_TARGET says whether
 * there are dot products. */
#ifndef NK_CPU_NEON_H
#define NK_CPU_NEON_H

#include <arm_neon.h>
#include <string.h>

#define LANES 4
#define CODE_ROWS 8 /* these as in cpu_avx512.h: both have 32 vector registers */
#define CODE_VECTORS 2
#define VALUE_ROWS 8
#define VALUE_VECTORS 2
#define CPU_ROWS_FP16
#define OPERATION CPU_TARGET static inline __attribute__((always_inline))

typedef float32x4_t vf;
typedef int32x4_t vi;

OPERATION vf vf_set(float x) { return vdupq_n_f32(x); }
OPERATION vf vf_load(const float *from) { return vld1q_f32(from); }
OPERATION void vf_store(float *to, vf x) { vst1q_f32(to, x); }
OPERATION vf vf_mul(vf x, vf y) { return vmulq_f32(x, y); }
OPERATION vf vf_add(vf x, vf y) { return vaddq_f32(x, y); }
OPERATION vf vf_sub(vf x, vf y) { return vsubq_f32(x, y); }
OPERATION vf vf_div(vf x, vf y) { return vdivq_f32(x, y); }
OPERATION vf vf_min(vf x, vf y) { return vminnmq_f32(x, y); } /* the number where the other is NaN */
OPERATION vf vf_max(vf x, vf y) { return vmaxnmq_f32(x, y); } /* the number where the other is NaN */
OPERATION vf vf_fma(vf x, vf y, vf z) { return vfmaq_f32(z, x, y); }
OPERATION float vf_sum(vf x) { return vaddvq_f32(x); }
OPERATION vf vf_of_int(vi x) { return vcvtq_f32_s32(x); }
OPERATION vf vf_of_bits(vi x) { return vreinterpretq_f32_s32(x); }

OPERATION uint32x4_t words_of(vi x) { return vreinterpretq_u32_s32(x); }
OPERATION vi of_words(uint32x4_t x) { return vreinterpretq_s32_u32(x); }
OPERATION int16x8_t int16s_of(vi x) { return vreinterpretq_s16_s32(x); }
OPERATION vi of_i16(int16x8_t x) { return vreinterpretq_s32_s16(x); }
OPERATION int8x16_t bytes_of(vi x) { return vreinterpretq_s8_s32(x); }
OPERATION vi of_bytes(int8x16_t x) { return vreinterpretq_s32_s8(x); }

OPERATION vi vi_set(int32_t x) { return vdupq_n_s32(x); }
OPERATION vi vi_load(const void *from) { return of_bytes(vld1q_s8(from)); }
OPERATION void vi_store(void *to, vi x) { vst1q_s8(to, bytes_of(x)); }
OPERATION vi vi_add(vi x, vi y) { return vaddq_s32(x, y); }
OPERATION vi vi_of_bits(vf x) { return vreinterpretq_s32_f32(x); }
OPERATION vi vi_max(vi x, vi y) { return vmaxq_s32(x, y); }
OPERATION vi vi_sub(vi x, vi y) { return vsubq_s32(x, y); }
OPERATION vi vi_sub_bytes(vi x, vi y) { return of_bytes(vsubq_s8(bytes_of(x), bytes_of(y))); }
OPERATION vi vi_and(vi x, vi y) { return vandq_s32(x, y); }
OPERATION vi vi_or(vi x, vi y) { return vorrq_s32(x, y); }
OPERATION vi vi_sll(vi x, int count) { return vshlq_s32(x, vdupq_n_s32(count)); }
OPERATION vi vi_srl(vi x, int count) { return of_words(vshlq_u32(words_of(x), vdupq_n_s32(-count))); }
OPERATION vi vi_add_i16(vi x, vi y) { return of_i16(vaddq_s16(int16s_of(x), int16s_of(y))); }
OPERATION vi vi_max_i16(vi x, vi y) { return of_i16(vmaxq_s16(int16s_of(x), int16s_of(y))); }
OPERATION vi vi_of_bytes(const uint8_t *from)
{
    uint32_t four;
    memcpy(&four, from, sizeof four);
    return of_words(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four))))));
}
OPERATION void vi_store_bytes(uint8_t *to, vi x)
{
    uint16x4_t halves = vmovn_u32(words_of(x));
    uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(halves, halves))), 0);
    memcpy(to, &four, sizeof four);
}

/* Signed 16-bit integers multiplied, and added in pairs. */
OPERATION vi vi_madd_i16(vi x, vi y)
{
    int16x8_t a = int16s_of(x), b = int16s_of(y);
    return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_s16(vget_high_s16(a), vget_high_s16(b)));
}

typedef uint32x4_t vmask;
OPERATION vmask vi_less(vi x, vi y) { return vcltq_s32(x, y); }
OPERATION vmask vf_less(vf x, vf y) { return vcltq_f32(x, y); } /* false where one is NaN */
OPERATION bool vmask_any(vmask mask) { return vmaxvq_u32(mask) != 0; }
OPERATION vf vf_select(vmask mask, vf yes, vf no) { return vbslq_f32(mask, yes, no); }
OPERATION vi vi_select(vmask mask, vi yes, vi no) { return vbslq_s32(mask, yes, no); }

/* Loads the first `words` words. The rest become 0 and are not read. */
OPERATION vi vi_load_some(const void *from, int64_t words)
{
    int32_t there[LANES] = {0};
    memcpy(there, from, (size_t)(words < LANES ? words : LANES) * sizeof *there);
    return vi_load(there);
}

/* Word j of vector i becomes word i of vector j. */
OPERATION void vi_transpose(vi x[LANES])
{
    int32x4x2_t low = vzipq_s32(x[0], x[2]), high = vzipq_s32(x[1], x[3]);
    int32x4x2_t first = vzipq_s32(low.val[0], high.val[0]), last = vzipq_s32(low.val[1], high.val[1]);
    x[0] = first.val[0];
    x[1] = first.val[1];
    x[2] = last.val[0];
    x[3] = last.val[1];
}

/* The larger of two words, or of two pairs of unsigned 16-bit integers. */
OPERATION vi vi_larger(vi x, vi y, bool pairs)
{
    uint16x8_t most = vmaxq_u16(vreinterpretq_u16_s32(x), vreinterpretq_u16_s32(y));
    return pairs ? vreinterpretq_s32_u16(most) : vi_max(x, y);
}

/* Of 4 blocks of 8 words, each in two vectors: word i becomes the largest of block i. */
OPERATION vi vi_largest_of_blocks(vi x[8], bool pairs)
{
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) x[i] = vi_larger(x[2 * i], x[2 * i + 1], pairs);
    _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)
    {
        x[i] = vi_larger(vuzp1q_s32(x[2 * i], x[2 * i + 1]), vuzp2q_s32(x[2 * i], x[2 * i + 1]), pairs);
    }
    return vi_larger(vuzp1q_s32(x[0], x[1]), vuzp2q_s32(x[0], x[1]), pairs);
}

/* The same for sums: word k of a block is added to word k + 4, then k to k + 2 and k to k + 1. */
OPERATION vf vf_sums_of_blocks(const vf x[8])
{
    vf y[4], z[2];
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) y[i] = vf_add(x[2 * i], x[2 * i + 1]);
    _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)
    {
        float64x2_t even = vreinterpretq_f64_f32(y[2 * i]), odd = vreinterpretq_f64_f32(y[2 * i + 1]);
        z[i] = vf_add(vreinterpretq_f32_f64(vzip1q_f64(even, odd)), vreinterpretq_f32_f64(vzip2q_f64(even, odd)));
    }
    return vf_add(vuzp1q_f32(z[0], z[1]), vuzp2q_f32(z[0], z[1]));
}

/* The factor of the block that a vector of 16-bit pairs holds half of. */
OPERATION vf vf_of_blocks(const float factors[LANES], int vector) { return vf_set(factors[vector / 2]); }

/* Selects by an exponent of 127, 128 or 129. */
OPERATION vf vf_by_exponent(vi exponent, float zero, float one, float two)
{
    vf above = vf_select(vi_less(exponent, vi_set(129)), vf_set(one), vf_set(two));
    return vf_select(vi_less(exponent, vi_set(128)), vf_set(zero), above);
}

/* Elements 0, 2, 4 .. of x and then y, or 1, 3, 5 .. */
OPERATION vf vf_every_second(vf x, vf y, int first) { return first ? vuzp2q_f32(x, y) : vuzp1q_f32(x, y); }

/* 2 e2m1 + 12 of every byte's low nibble */
OPERATION vi raised_of_nibbles(vi x)
{
    const int8x16_t table = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    return of_bytes(vqtbl1q_s8(table, vandq_u8(vreinterpretq_u8_s32(x), vdupq_n_u8(15))));
}

/* Nibbles to words. Only the low four bits of a word are defined. */
OPERATION vi vi_of_nibbles(const uint8_t *from)
{
    const int32x4_t places = {0, -4, -8, -12};
    return of_words(vshlq_u32(vdupq_n_u32((uint32_t)from[0] | (uint32_t)from[1] << 8), places));
}

/* e2m1 of every word's low nibble. Two tables give the upper two bytes of the float; the lower two are 0, since their
 * indices are beyond the tables. */
OPERATION vf vf_of_e2m1(vi x)
{
    const uint8x16x2_t table = {
        {{0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, 0x80, 0xBF, 0xBF, 0xBF, 0xC0, 0xC0, 0xC0, 0xC0},
         {0, 0, 0x80, 0xC0, 0, 0x40, 0x80, 0xC0, 0, 0, 0x80, 0xC0, 0, 0x40, 0x80, 0xC0}}};
    vi nibble = vi_and(x, vi_set(15));
    vi bytes = vmlaq_s32(vi_set(0x0010FFFF), nibble, vi_set(0x01010000));
    return vreinterpretq_f32_u8(vqtbl2q_u8(table, vreinterpretq_u8_s32(bytes)));
}

/* fp16 in every word's low half */
OPERATION vf vf_of_half(vi x) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(words_of(x)))); }

CPU_TARGET static void load_fp16(const uint8_t *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i += LANES) {
        uint16_t halves[LANES] = {0};
        float floats[LANES];
        size_t there = (size_t)(count - i < LANES ? count - i : LANES);
        memcpy(halves, from + 2 * i, there * sizeof *halves);
        vf_store(floats, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves))));
        memcpy(to + i, floats, there * sizeof *floats);
    }
}

CPU_TARGET static void store_fp16(const float *from, int64_t count, uint8_t *to)
{
    for (int64_t i = 0; i < count; i += LANES) {
        float floats[LANES] = {0};
        uint16_t halves[LANES];
        size_t there = (size_t)(count - i < LANES ? count - i : LANES);
        memcpy(floats, from + i, there * sizeof *floats);
        vst1_u16(halves, vreinterpret_u16_f16(vcvt_f16_f32(vf_load(floats))));
        memcpy(to + 2 * i, halves, there * sizeof *halves);
    }
}

/* Elements 2 half and 2 half + 1, each twice. */
OPERATION vf vf_twice_each(vf x, int half) { return half ? vzip2q_f32(x, x) : vzip1q_f32(x, x); }

/* sum + the products of signed bytes, four to a word */
OPERATION vi add_dot(vi sum, int8x16_t x, int8x16_t y)
{
#ifdef CPU_DOTPROD
    return vdotq_s32(sum, x, y);
#else
    int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vmull_high_s8(x, y));
    return vpadalq_s16(sum, pairs);
#endif
}

/* bias + the products of bytes u and s, four to a word */
OPERATION vi dot_pair(vi bias, vi u0, vi s0, vi u1, vi s1)
{
    return add_dot(add_dot(bias, bytes_of(u0), bytes_of(s0)), bytes_of(u1), bytes_of(s1));
}

/* bias + sum over a block of codes[q] times the four signed bytes q of `elements` */
OPERATION vi dot_block(vi bias, const vi codes[4], const int8_t *elements)
{
    _Pragma("GCC unroll 4") for (int q = 0; q < 4; q++)
    {
        int32_t four;
        memcpy(&four, elements + 4 * q, sizeof four);
        bias = add_dot(bias, bytes_of(codes[q]), bytes_of(vi_set(four)));
    }
    return bias;
}

/* 2 e2m1 of the next four blocks in the order of cpu_simd_tile.h, and -12 times the sum of each block. Where fewer than
 * four `blocks` are left, the rest are 0. */
OPERATION void decode_four_blocks(const uint8_t *codes, int64_t blocks, int8_t to[64], int32_t bias[4])
{
    const int8x16_t table = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    memset(to, 0, 64);
    memset(bias, 0, 4 * sizeof *bias);
    for (int64_t b = 0; b < blocks && b < 4; b++) {
        uint8x8_t packed = vld1_u8(codes + 8 * b);
        int8x16_t twice = vqtbl1q_s8(table, vcombine_u8(vand_u8(packed, vdup_n_u8(15)), vshr_n_u8(packed, 4)));
        vst1q_s8(to + 16 * b, twice);
        bias[b] = -12 * vaddlvq_s8(twice);
    }
}

#include "cpu_simd_blocks.h"
#include "cpu_simd_four_six.h"
#include "cpu_simd_tile.h"
#include "cpu_simd_vector.h"

#endif
