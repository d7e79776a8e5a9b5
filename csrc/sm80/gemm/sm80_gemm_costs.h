/* What the sm80 GEMM family's work takes. All times are in microseconds (us); only ratios matter.
 *
 * From 1200 launches of all tiles with NVFP4 tokens on an H200, 2026-11, before the second launch overlapped the first:
 * the choice was within 1 % of the best on average, 8 % at worst. */
#ifndef NK_SM80_GEMM_COSTS_H
#define NK_SM80_GEMM_COSTS_H

#define SM80_GEMM_FLOP_PER_US 2.88e6     /* of an SM, with decoding in the same issue slots */
#define SM80_GEMM_DECODE_US 0.11         /* a step's, of 128 weight rows */
#define SM80_GEMM_BYTES_PER_US 23e3      /* of an SM, while all of them read */
#define SM80_GEMM_LONE_STEP_US 0.78      /* no CTA walks faster, however empty its SM: latencies and barriers */
#define SM80_GEMM_LONE_TOKEN_US 0.008    /* and for every token of the tile */
#define SM80_GEMM_NEIGHBOUR 0.45         /* how much of that a further CTA of the SM adds */
#define SM80_GEMM_CTA_US 0.5             /* filling the ring and the epilogue */
#define SM80_GEMM_PART_US 0.24           /* going on to another tile */
#define SM80_GEMM_REDUCE_US 6.3          /* a second launch */
#define SM80_GEMM_SUM_BYTES_PER_US 2.7e6 /* partial sums through L2 and back */

#endif
