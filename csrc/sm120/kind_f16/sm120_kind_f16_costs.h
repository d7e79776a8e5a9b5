/* What the sm120 kind_f16 family's work takes, beside sm120_gemm_costs.h. Published, not measured here: a GPU of 170
 * SMs at 2.4 GHz has 210 TFLOPS of fp16 with fp32 sums, 64 multiply-adds a cycle and scheduler. */
#ifndef NK_SM120_KIND_F16_COSTS_H
#define NK_SM120_KIND_F16_COSTS_H

#define SM120_KIND_F16_MMA_CYCLES 32.0 /* of an m16n8k16, on one of an SM's four schedulers */

/* A warp's other instructions of a step: 115 of fp16, 227 of bf16, by the machine code. That none hides is assumed: a
 * scheduler has one warp, or two. */
#define SM120_KIND_F16_DECODE_CYCLES 170.0

#endif
