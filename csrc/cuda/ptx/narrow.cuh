/* Conversions between 32-bit floats, fp16, and numbers of four and eight bits, from sm_100 on. */
#ifndef NK_NARROW_CUH
#define NK_NARROW_CUH

#include <stdint.h>

/* Two floats as E4M3, `low` in the low byte. To nearest even; beyond 448 is 448, NaN is 0x7F. */
__device__ inline uint32_t cvt_satfinite_e4m3x2_f32(float high, float low)
{
    uint16_t bytes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bytes) : "f"(high), "f"(low));
    return bytes;
}

/* Eight floats as E2M1, v[0] in the lowest nibble: cvt.rn.satfinite.e2m1x2.f32, four times. To nearest even; beyond 6
 * is 6. The sign stays, but NaN is +6. The bytes are joined here, since only so ptxas lets conversions join them. */
__device__ inline uint32_t cvt_satfinite_e2m1x2_f32(const float v[8])
{
    uint32_t codes;
    asm("{ .reg .b8 b0, b1, b2, b3;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 b0, %2, %1;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 b1, %4, %3;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 b2, %6, %5;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 b3, %8, %7;\n\t"
        "mov.b32 %0, {b0, b1, b2, b3}; }"
        : "=r"(codes)
        : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]));
    return codes;
}

/* Eight E2M1 codes as fp16, exact: cvt.rn.f16x2.e2m1x2, four times. Pair i has elements 2 i and 2 i + 1. */
__device__ inline void cvt_f16x2_e2m1x2(uint32_t codes, uint32_t pairs[4])
{
    asm("{ .reg .b8 b0, b1, b2, b3;\n\t"
        "mov.b32 {b0, b1, b2, b3}, %4;\n\t"
        "cvt.rn.f16x2.e2m1x2 %0, b0;\n\t"
        "cvt.rn.f16x2.e2m1x2 %1, b1;\n\t"
        "cvt.rn.f16x2.e2m1x2 %2, b2;\n\t"
        "cvt.rn.f16x2.e2m1x2 %3, b3; }"
        : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
        : "r"(codes));
}

#endif
