/* Conversions between bits and floats. Each rounds once, to nearest even, and expects the default floating-point mode.
 */
#ifndef NK_CPU_CONVERT_H
#define NK_CPU_CONVERT_H

#include "nk_math.h"
#include "nk_problem.h"

#include <math.h>
#include <string.h>

static const float E2M1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};

/* 2 e2m1, which is a small integer. */
static const int8_t TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* These functions compute every case and then select one, so that compilers can use vectors. */

static inline float cpu_e4m3_to_float(uint8_t byte)
{
    uint32_t magnitude = byte & 0x7F;
    float subnormal = (float)(int32_t)magnitude * 0x1p-9f;
    float normal = nk_float_of_bits((magnitude << 20) + ((127 - 7) << 23));
    float number = magnitude < 8 ? subnormal : normal;
    return magnitude == NK_E4M3_NAN ? NAN : number;
}

/* value in [0, 448] */
static inline uint8_t cpu_e4m3_of_float(float value)
{
    /* Numbers below the smallest normal one, 2^-6, are 2^-9 apart, which is one ulp of 2^14. */
    uint32_t subnormal = nk_bits_of_float(value + 0x1p14f) - nk_bits_of_float(0x1p14f);
    uint32_t bits = nk_bits_of_float(value);
    uint32_t normal = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
    return (uint8_t)(value < 0x1p-6f ? subnormal : normal);
}

/* Ties go to the even code: .25, 1.25, 2.5 and 5 are rounded down; .75, 1.75 and 3.5 are rounded up. Saturates at 6;
 * NaN gives 0. */
static inline uint8_t e2m1_of_float(float value)
{
    float v = fabsf(value);
    int code = (v > 0.25f) + (v >= 0.75f) + (v > 1.25f) + (v >= 1.75f) + (v > 2.5f) + (v >= 3.5f) + (v > 5.0f);
    return (uint8_t)(code | (signbit(value) ? 8 : 0));
}

static inline float fp16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7FFF;
    uint32_t subnormal = nk_bits_of_float((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t special = 0x7F800000 | (magnitude & 0x3FF) << 13;
    uint32_t normal = (magnitude << 13) + ((127 - 15) << 23);
    uint32_t number = magnitude < 0x400 ? subnormal : normal;
    return nk_float_of_bits(sign | (magnitude >= 0x7C00 ? special : number));
}

static inline uint16_t fp16_of_float(float value)
{
    uint32_t bits = nk_bits_of_float(value), magnitude = bits & 0x7FFFFFFF, sign = bits >> 16 & 0x8000;
    /* Numbers below 2^-14 are 2^-24 apart, which is one ulp of 0.5. */
    uint32_t subnormal = nk_bits_of_float(nk_float_of_bits(magnitude) + 0.5f) - nk_bits_of_float(0.5f);
    uint32_t normal = (magnitude + 0xFFF + (magnitude >> 13 & 1) - ((127 - 15) << 23)) >> 13;
    uint32_t number = magnitude < 0x38800000 ? subnormal : normal;
    number = magnitude >= 0x477FF000 ? 0x7C00 : number; /* 65520 and more round to infinity */
    return (uint16_t)(sign | (magnitude > 0x7F800000 ? 0x7E00 : number));
}

static inline float bf16_to_float(uint16_t bfloat) { return nk_float_of_bits((uint32_t)bfloat << 16); }

static inline uint16_t bf16_of_float(float value)
{
    uint32_t bits = nk_bits_of_float(value);
    uint32_t nan = (bits >> 16 & 0x8000) | 0x7FC0, number = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : number);
}

static inline int64_t float_bytes(nk_dtype dtype) { return dtype == NK_F32 ? 4 : 2; }

/* One element of an fp16, bf16 or fp32 tensor. */
static inline float cpu_load_float(const uint8_t *at, nk_dtype dtype)
{
    uint16_t half;
    float value;
    if (dtype == NK_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&half, at, sizeof half);
    return dtype == NK_F16 ? fp16_to_float(half) : bf16_to_float(half);
}

static inline void cpu_store_float(uint8_t *at, nk_dtype dtype, float value)
{
    if (dtype == NK_F32) {
        memcpy(at, &value, sizeof value);
        return;
    }
    uint16_t half = dtype == NK_F16 ? fp16_of_float(value) : bf16_of_float(value);
    memcpy(at, &half, sizeof half);
}

#endif
