/* The cost model of the sm100 kind_f16 family, beside sm100_gemm_costs.h. Stated, not measured: no such GPU was at
 * hand. Only ratios matter. */
#ifndef NK_SM100_KIND_F16_COSTS_H
#define NK_SM100_KIND_F16_COSTS_H

#include "sm100/gemm/sm100_gemm_costs.h"

/* Cycles for M 128 x K 64: of MMAs, for each 1 of N, at 8192 multiply-adds a cycle; of reading a row's 128 bytes from
 * shared memory; of decoding to bf16, 20 instructions for eight weights, four warps at once. */
#define SM100_KIND_F16_MMA_N_CYCLES 1.0
#define SM100_KIND_F16_OPERAND_ROW_CYCLES 1.0
#define SM100_KIND_F16_DECODE_CYCLES 160.0

#endif
