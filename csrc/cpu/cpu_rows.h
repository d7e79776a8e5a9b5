/* The row functions of a path, in plain C. A path defines CPU_TARGET and includes this: its copy is compiled for its
 * instructions, with the same bits as every path. A path defines CPU_ROWS_FP16 if it has a load_fp16 and a
 * store_fp16 of its own. */
#ifndef NK_CPU_ROWS_H
#define NK_CPU_ROWS_H

#include "cpu_convert.h"
#include "cpu_path.h"
#include "nk_math.h"

#ifndef CPU_ROWS_FP16
CPU_TARGET static void load_fp16(const uint8_t *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = cpu_load_float(from + 2 * i, NK_F16);
}

CPU_TARGET static void store_fp16(const float *from, int64_t count, uint8_t *to)
{
    for (int64_t i = 0; i < count; i++)
        cpu_store_float(to + 2 * i, NK_F16, from[i]);
}
#endif

CPU_TARGET static void load_row(const uint8_t *from, nk_dtype dtype, int64_t count, float *to)
{
    if (dtype == NK_F32) {
        memcpy(to, from, (size_t)count * sizeof *to);
    } else if (dtype == NK_F16) {
        load_fp16(from, count, to);
    } else {
        for (int64_t i = 0; i < count; i++)
            to[i] = cpu_load_float(from + 2 * i, NK_BF16);
    }
}

/* Loads elements that are `stride` bytes apart. */
CPU_TARGET static inline void load_strided(const uint8_t *from, nk_dtype dtype, int64_t stride, int64_t count,
                                           float *to)
{
    if (stride == float_bytes(dtype)) {
        load_row(from, dtype, count, to);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        to[i] = cpu_load_float(from + i * stride, dtype);
}

CPU_TARGET static void store_row(const float *from, nk_dtype dtype, int64_t count, uint8_t *to)
{
    if (dtype == NK_F32) {
        memcpy(to, from, (size_t)count * sizeof *from);
    } else if (dtype == NK_F16) {
        store_fp16(from, count, to);
    } else {
        for (int64_t i = 0; i < count; i++)
            cpu_store_float(to + 2 * i, NK_BF16, from[i]);
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

/* ---------------------------------------------------------------------------------------------------------------- */
/* Exponentials                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

/* exp(x) within 2 ulps, down to the denormals, then 0; infinity where it overflows. exp(x) = 2^n (1 + p) with n an
 * integer and |p| < 0.42, as in nk_silu. 2^n is multiplied as two factors, since no float holds its smallest and
 * largest values. */
static inline float exponential(float x)
{
    const float above = x < -110.0f ? -110.0f : x, t = above > 90.0f ? 90.0f : above; /* NaN stays */
    const float shifter = 12582912.0f, shifted = t * 1.44269504f + shifter, k = shifted - shifter;
    const int32_t n = (int32_t)(nk_bits_of_float(shifted) - nk_bits_of_float(shifter)), half = n >> 1;
    const float r = (t - k * 0.693359375f) - k * -2.12194440e-4f;
    float tail = 0x1.6db64cp-10f;
    tail = tail * r + 0x1.123ce0p-7f;
    tail = tail * r + 0x1.55545cp-5f;
    tail = tail * r + 0x1.55548cp-3f;
    tail = tail * r + 0.5f;
    return (1.0f + ((r * r) * tail + r)) * nk_power_of_two(half) * nk_power_of_two(n - half);
}

static inline float cpu_sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

/* NaN at -infinity, as h / (1 + exp(-h)) is; nk_silu's 0 is for quantising. */
static inline float cpu_silu(float h) { return h == -INFINITY ? NAN : nk_silu(h); }

/* erfc(x) for x >= 0, within a relative 2^-22 (2.5 + x^2 / 2) where it is normal: x^2 is rounded before exponential()
 * gets it. The polynomial is that of erfcc in Numerical Recipes. */
static inline float erfc_of_positive(float x)
{
    const float t = 1.0f / (1.0f + 0.5f * x);
    float p = 0.17087277f;
    p = p * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    p = p * t - 1.26551223f;
    return t * exponential(p - x * x);
}

/* h/2 (1 + erf(h / sqrt 2)). 1 + erf(x) is erfc(-x) for x < 0, and 2 - erfc(x) elsewhere. */
static inline float cpu_gelu(float h)
{
    const float tail = erfc_of_positive(fabsf(h) * 0.70710678f);
    return 0.5f * h * (h < 0 ? tail : 2.0f - tail);
}

/* h/2 (1 + tanh(u)) = h / (1 + exp(-2u)) */
static inline float cpu_gelu_tanh(float h) { return h * cpu_sigmoid(1.59576912f * (h + 0.044715f * h * h * h)); }

CPU_TARGET static void exp_row(float *values, float shift, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = exponential(values[i] - shift);
}

CPU_TARGET static void sigmoid_row(const float *restrict from, int64_t count, float *restrict to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = cpu_sigmoid(from[i]);
}

CPU_TARGET static void sqrt_softplus_row(const float *restrict from, int64_t count, float *restrict to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = nk_sqrt_softplus(from[i], exponential(fabsf(from[i]) * -0.5f));
}

/* h sigmoid(t), where t has the sign of h. exp(-t) would overflow where the result is still a normal number. */
static inline float cpu_swish(float h, float t)
{
    const float e = exponential(-fabsf(t));
    return (h < 0 ? h * e : h) / (1.0f + e);
}

static inline float relu(float h) { return h < 0 ? 0.0f : h; } /* keeps NaN */

CPU_TARGET static void limit_row(float limit, float *restrict values, float *restrict up, int64_t count)
{
    for (int64_t i = 0; limit < INFINITY && i < count; i++) { /* comparisons keep NaN */
        values[i] = values[i] > limit ? limit : values[i];
        up[i] = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    }
}

CPU_TARGET static void activate_row(nk_activation activation, float *restrict values, float *restrict up, int64_t count)
{
    const float scale = activation.scale;
    limit_row(activation.limit, values, up, count);
    switch (activation.kind) {
    case NK_SILU:
        for (int64_t i = 0; i < count; i++)
            values[i] = cpu_silu(values[i]) * up[i];
        break;
    case NK_GELU:
        for (int64_t i = 0; i < count; i++)
            values[i] = cpu_gelu(values[i]) * up[i];
        break;
    case NK_GELU_TANH:
        for (int64_t i = 0; i < count; i++)
            values[i] = cpu_gelu_tanh(values[i]) * up[i];
        break;
    case NK_RELU:
        for (int64_t i = 0; i < count; i++)
            values[i] = relu(values[i]) * up[i];
        break;
    case NK_RELU2:
        for (int64_t i = 0; i < count; i++)
            values[i] = relu(values[i]) * relu(values[i]) * up[i];
        break;
    case NK_SWIGLU_OAI:
        for (int64_t i = 0; i < count; i++)
            values[i] = cpu_swish(values[i], scale * values[i]) * (up[i] + 1.0f);
        break;
    case NK_IDENTITY:
        for (int64_t i = 0; i < count; i++)
            values[i] *= up[i];
        break;
    }
}

/* The row functions of a path: these, and its own finite_amax_row, encode_row and decode_row. */
#define CPU_ROWS                                                                                          \
    .load = load_row, .store = store_row, .scale = scale_row, .gate = gate_row, .limit = limit_row,       \
    .activate = activate_row, .exp = exp_row, .sigmoid = sigmoid_row, .sqrt_softplus = sqrt_softplus_row, \
    .finite_amax = finite_amax_row, .encode = encode_row, .encode_four_six = encode_four_six_row, .decode = decode_row

#endif
