/* mma: of one warp, operands in registers. */
#ifndef NK_MMA_CUH
#define NK_MMA_CUH

#include <stdint.h>

/* d += a b: a 16x16, b 16x8, d 16x8 in fp32. */
#define NK_MMA(type)                                                                                      \
    __device__ inline void mma_m16n8k16_##type(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) \
    {                                                                                                     \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type ".f32"                               \
            " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                      \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                              \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                              \
    }
NK_MMA(f16)
NK_MMA(bf16)
#undef NK_MMA

#endif
