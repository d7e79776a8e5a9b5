/* What the sm120 GEMM families' work takes, by facts of the hardware that are published, and none measured here: a GPU
 * of 170 SMs at 2.4 GHz whose memory gives 1628 of its 1792 GB/s. Times scale with the SMs: those of smaller GPUs have
 * less memory each. */
#ifndef NK_SM120_GEMM_COSTS_H
#define NK_SM120_GEMM_COSTS_H

#define SM120_GEMM_CYCLES_PER_US 2400.0
#define SM120_GEMM_MMA_CYCLES 16.0 /* of an m16n8k64, on one of an SM's four schedulers */
#define SM120_GEMM_MEMORY_BYTES_PER_US 1.628e6
#define SM120_GEMM_SMS 170.0               /* that share it */
#define SM120_GEMM_L2_BYTES_PER_CYCLE 16.0 /* of an SM, assumed: three times what memory has */
#define SM120_GEMM_LATENCY_CYCLES 1000.0   /* assumed: from a copy's issue to its arrival, out of memory */
#define SM120_GEMM_CTA_CYCLES 2000.0       /* assumed: a CTA's start and its first step */
#define SM120_GEMM_TOKEN_CYCLES 16.0       /* assumed: of the epilogue, of a token of 128 features */

/* Assumed: of a divided tile, three ways to L2 and back, for the last sums, the counter, and the sums to add. */
#define SM120_GEMM_FIX_UP_CYCLES 3000.0

#endif
