/* Decoding in vectors: scale factors, and rows of blocks. */
#ifndef NK_CPU_SIMD_BLOCKS_H
#define NK_CPU_SIMD_BLOCKS_H

#include "cpu_rows.h"

#include <float.h>

#define UNROLL _Pragma("GCC unroll 16")
#define ALIGNED _Alignas(64)

/* ---------------------------------------------------------------------------------------------------------------- */
/* E4M3                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* x: a scale byte in each word, bit 7 cleared */
OPERATION vf vf_of_e4m3(vi x)
{
    vf subnormal = vf_mul(vf_of_int(x), vf_set(0x1p-9f));
    vf normal = vf_of_bits(vi_add(vi_sll(x, 20), vi_set((127 - 7) << 23)));
    vf number = vf_select(vi_less(x, vi_set(8)), subnormal, normal);
    return vf_select(vi_less(x, vi_set(NK_E4M3_NAN)), number, vf_set(NAN));
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Rows                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

CPU_TARGET static void decode_row(const uint8_t *codes, const uint8_t *sf, float s2, int64_t blocks, float *values)
{
    ALIGNED float scales[LANES];
    for (int64_t b = 0; b < blocks; b++) {
        if (b % LANES == 0) vf_store(scales, vf_of_e4m3(vi_and(vi_of_bytes(sf + b), vi_set(0x7F))));
        vf scale = vf_set(scales[b % LANES]);
        UNROLL for (int64_t at = b * NK_SF_VEC; at < (b + 1) * NK_SF_VEC; at += LANES)
        {
            vf element = vf_mul(vf_of_e2m1(vi_of_nibbles(codes + at / 2)), scale);
            vf_store(values + at, vf_mul(element, vf_set(s2)));
        }
    }
}

#endif
