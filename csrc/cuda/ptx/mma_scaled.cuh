/* mma of block-scaled e2m1: of one warp, operands and scale factors in registers. Compute capability 12 has it. */
#ifndef NK_MMA_SCALED_CUH
#define NK_MMA_SCALED_CUH

#include <stdint.h>

#define NK_MMA_SCALED(ROWS, COLUMNS)                                                                              \
    asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32"            \
        ".ue4m3 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, %10, {0," #ROWS "}, %11, {0," #COLUMNS "};" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                          \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(sfa), "r"(sfb))

/* d += a b: a 16x64, b 64x8, d 16x8 in fp32, a ue4m3 for each 16 elements of K. Scale factors are four of a row, or of
 * a column, a register, of which few lanes' are read: of lanes 4 g + 2 `rows` and the next those of rows g and g + 8 of
 * a, of lane 4 g + `columns` those of column g of b. Both are constants once loops are unrolled. */
__device__ inline void mma_m16n8k64_mxf4nvf4(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, uint32_t sfa,
                                             int rows, uint32_t sfb, int columns)
{
    if (rows == 0) {
        if (columns == 0) NK_MMA_SCALED(0, 0);
        if (columns == 1) NK_MMA_SCALED(0, 1);
        if (columns == 2) NK_MMA_SCALED(0, 2);
        if (columns == 3) NK_MMA_SCALED(0, 3);
    } else {
        if (columns == 0) NK_MMA_SCALED(1, 0);
        if (columns == 1) NK_MMA_SCALED(1, 1);
        if (columns == 2) NK_MMA_SCALED(1, 2);
        if (columns == 3) NK_MMA_SCALED(1, 3);
    }
}
#undef NK_MMA_SCALED

#endif
