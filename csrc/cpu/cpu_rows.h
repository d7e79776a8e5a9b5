/* The row functions of a path, in plain C: a path that includes this after defining CPU_TARGET has them compiled for
 * its instructions, from the same text and so to the same bits. Define CPU_ROWS_HALVES where the path brings its own
 * load_halves and store_halves. */
#ifndef NK_CPU_ROWS_H
#define NK_CPU_ROWS_H

#include "../nk_math.h"
#include "cpu_convert.h"
#include "cpu_path.h"

#include <float.h>

#define MAX_ROW 512 /* elements worked on at a time */

#ifndef CPU_ROWS_HALVES
CPU_TARGET static void load_halves(const uint8_t *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = load_float(from + 2 * i, NK_F16);
}

CPU_TARGET static void store_halves(const float *from, int64_t count, uint8_t *to)
{
    for (int64_t i = 0; i < count; i++)
        store_float(to + 2 * i, NK_F16, from[i]);
}
#endif

CPU_TARGET static void load_row(const uint8_t *from, nk_dtype dtype, int64_t count, float *to)
{
    if (dtype == NK_F32) {
        memcpy(to, from, (size_t)count * sizeof *to);
    } else if (dtype == NK_F16) {
        load_halves(from, count, to);
    } else {
        for (int64_t i = 0; i < count; i++)
            to[i] = load_float(from + 2 * i, NK_BF16);
    }
}

/* Elements of 16 bits, `stride` bytes apart. */
CPU_TARGET static inline void load_strided(const uint8_t *from, nk_dtype dtype, int64_t stride, int64_t count,
                                           float *to)
{
    if (stride == 2) {
        load_row(from, dtype, count, to);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        to[i] = load_float(from + i * stride, dtype);
}

CPU_TARGET static void store_row(const float *from, nk_dtype dtype, int64_t count, uint8_t *to)
{
    if (dtype == NK_F32) {
        memcpy(to, from, (size_t)count * sizeof *from);
    } else if (dtype == NK_F16) {
        store_halves(from, count, to);
    } else {
        for (int64_t i = 0; i < count; i++)
            store_float(to + 2 * i, NK_BF16, from[i]);
    }
}

CPU_TARGET static void scale_row(float *restrict values, const float *restrict alpha, const float *restrict bias,
                                 int64_t count)
{
    if (bias) {
        for (int64_t i = 0; i < count; i++)
            values[i] = fmaf(alpha[i], values[i], bias[i]);
    } else {
        for (int64_t i = 0; i < count; i++)
            values[i] *= alpha[i];
    }
}

CPU_TARGET static void gate_row(float *restrict values, const float *restrict up, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = nk_silu(values[i]) * up[i];
}

/* Magnitudes as integers: those order as the floats do, infinity and NaN after all. */
CPU_TARGET static float finite_amax_row(const float *values, int64_t count)
{
    uint32_t amax = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t magnitude = bits_of_float(values[i]) & 0x7FFFFFFF;
        magnitude = magnitude < 0x7F800000 ? magnitude : 0;
        amax = amax > magnitude ? amax : magnitude;
    }
    return float_of_bits(amax);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Blocks of 16                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

#define MAX_BLOCKS (MAX_ROW / NK_SF_VEC)

CPU_TARGET static uint32_t largest_magnitude(const float block[NK_SF_VEC])
{
    uint32_t amax = 0;
    for (int i = 0; i < NK_SF_VEC; i++) {
        uint32_t magnitude = bits_of_float(block[i]) & 0x7FFFFFFF;
        amax = amax > magnitude ? amax : magnitude;
    }
    return amax;
}

/* Scale bytes and what multiplies the elements; 0 there: every code is 0. */
CPU_TARGET static void scale_blocks(const cpu_encoder *e, const uint32_t *amax, int64_t blocks, uint8_t *sf,
                                    float *to_code)
{
    for (int64_t b = 0; b < blocks; b++) {
        float scaled = float_of_bits(amax[b]) * e->to_sf;
        scaled = scaled < NK_E4M3_MAX ? scaled : NK_E4M3_MAX;
        bool poisoned = amax[b] > 0x7F800000 || !e->valid;
        uint32_t byte = e4m3_of_float(scaled);
        float factor = 1.0f / (e4m3_to_float((uint8_t)byte) * e->inverse_s);
        factor = factor < FLT_MAX ? factor : FLT_MAX;
        sf[b] = (uint8_t)(poisoned ? NK_E4M3_NAN : byte);
        to_code[b] = poisoned || byte == 0 ? 0 : factor;
    }
}

/* An infinity saturates even where to_code is 0; in a block whose scale is 0 or NaN every code is 0. */
CPU_TARGET static void encode_block(const float *restrict block, float to_code, bool zero,
                                    uint8_t codes[restrict NK_SF_VEC / 2])
{
    uint8_t nibbles[NK_SF_VEC];
    for (int i = 0; i < NK_SF_VEC; i++) {
        uint32_t bits = bits_of_float(block[i]);
        uint32_t infinite = (bits & 0x80000000) | 0x40C00000; /* 6, with its sign */
        bool is_infinite = (bits & 0x7FFFFFFF) == 0x7F800000;
        float scaled = block[i] * to_code;
        nibbles[i] = (uint8_t)e2m1_of_float(float_of_bits(is_infinite ? infinite : bits_of_float(scaled)));
    }
    for (int i = 0; i < NK_SF_VEC / 2; i++)
        codes[i] = (uint8_t)(zero ? 0 : nibbles[2 * i] | nibbles[2 * i + 1] << 4);
}

CPU_TARGET static void encode_row(const cpu_encoder *e, const float *values, int64_t blocks, uint8_t *codes,
                                  uint8_t *sf)
{
    uint32_t amax[MAX_BLOCKS];
    float to_code[MAX_BLOCKS];
    for (int64_t b0 = 0; b0 < blocks; b0 += MAX_BLOCKS) {
        int64_t count = cpu_min(MAX_BLOCKS, blocks - b0);
        for (int64_t b = 0; b < count; b++)
            amax[b] = largest_magnitude(values + (b0 + b) * NK_SF_VEC);
        scale_blocks(e, amax, count, sf + b0, to_code);
        for (int64_t b = 0; b < count; b++) {
            bool zero = sf[b0 + b] == 0 || sf[b0 + b] == NK_E4M3_NAN;
            encode_block(values + (b0 + b) * NK_SF_VEC, to_code[b], zero, codes + (b0 + b) * (NK_SF_VEC / 2));
        }
    }
}

CPU_TARGET static void decode_row(const uint8_t *codes, const uint8_t *sf, int64_t blocks, float *values)
{
    for (int64_t b = 0; b < blocks; b++) {
        float scale = e4m3_to_float(sf[b]);
        for (int i = 0; i < NK_SF_VEC; i++)
            values[b * NK_SF_VEC + i] = E2M1[codes[b * (NK_SF_VEC / 2) + i / 2] >> (i % 2 * 4) & 15] * scale;
    }
}

#define CPU_ROWS                                                                                                \
    .load = load_row, .store = store_row, .scale = scale_row, .gate = gate_row, .finite_amax = finite_amax_row, \
    .encode = encode_row, .decode = decode_row

#endif
