/* Codes to fp16, eight at a time (sm_100f). */
#ifndef NK_E2M1_CUH
#define NK_E2M1_CUH

#include <stdint.h>

/* One instruction for each byte: the low nibble becomes the low half. Exact. */
__device__ inline void cvt_f16x2_e2m1x2(uint32_t codes, uint32_t (&halves)[4])
{
    asm("{ .reg .b8 c0, c1, c2, c3; mov.b32 {c0, c1, c2, c3}, %4;\n\t"
        "cvt.rn.f16x2.e2m1x2 %0, c0; cvt.rn.f16x2.e2m1x2 %1, c1;\n\t"
        "cvt.rn.f16x2.e2m1x2 %2, c2; cvt.rn.f16x2.e2m1x2 %3, c3; }"
        : "=r"(halves[0]), "=r"(halves[1]), "=r"(halves[2]), "=r"(halves[3])
        : "r"(codes));
}

#endif
