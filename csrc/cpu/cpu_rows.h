/* The row functions of a path, in plain C: a path that includes this after defining CPU_TARGET has them compiled for
 * its instructions, from the same text and so to the same bits. Define CPU_ROWS_HALVES where the path brings its own
 * load_halves and store_halves. */
#ifndef NK_CPU_ROWS_H
#define NK_CPU_ROWS_H

#include "../nk_math.h"
#include "cpu_convert.h"
#include "cpu_path.h"

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

/* With the three of a path's own: finite_amax_row, encode_row, decode_row. */
#define CPU_ROWS                                                                                                \
    .load = load_row, .store = store_row, .scale = scale_row, .gate = gate_row, .finite_amax = finite_amax_row, \
    .encode = encode_row, .decode = decode_row

#endif
