/* What a tile of the sm100 halves family costs beside what sm100_gemm_costs.h says. Stated, not measured: no such GPU
 * was at hand. Only ratios choose. */
#ifndef NK_SM100_KIND_F16_COSTS_H
#define NK_SM100_KIND_F16_COSTS_H

#include "sm100/gemm/sm100_gemm_costs.h"

/* Cycles, of 128 lanes x 64 of K: a product's, for each column, at 8192 multiply-adds a cycle; reading the 128 bytes of
 * a row out of shared memory; decoding to bf16, 20 instructions for eight weights, of four warps at once. */
#define SM100_KIND_F16_COLUMN_CYCLES 1.0
#define SM100_KIND_F16_ROW_CYCLES 1.0
#define SM100_KIND_F16_DECODE_CYCLES 160.0

#endif
