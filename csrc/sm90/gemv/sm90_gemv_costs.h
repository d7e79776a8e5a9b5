/* Costs of the sm90 gemv family. All times are in microseconds (us); only ratios matter.
 *
 *   STEP          a step of a consumer, while all consumers of an SM run side by side: its latencies
 *   STEP_OF_SM    any step of an SM: its instructions
 *   CODES, F16    1000 bytes of NVFP4 or 16-bit tokens in an SM's shared memory
 *   SOLO          the prologue and the epilogue of a CTA that has its SM alone, since no other CTA fills them
 *   EXPERT        finding a row's expert, before which nothing can be read
 *   CLUSTER       sending partial sums to other CTAs of a cluster, whose CTAs must start together
 *   CLUSTER_CTA   the same, for each CTA of the cluster
 *   RAGGED        rows that are no whole tiles
 *   MB            a megabyte of the matrix, beyond what memory takes
 *
 * From sweeps on an H200, 2026-11, fitted in cycles of 1.98 GHz. The choice takes more than the best, on average and at
 * most: with one NVFP4 token 0.4 % and 2.5 % (36 matrices in up to 50 schedules each), by tensor map 0.8 % and 8 % (31
 * matrices), with other tokens 1.1 % and 7 % (70 cases of 10 matrices and 1 to 8 tokens, in up to 24 schedules). */
#ifndef NK_SM90_GEMV_COSTS_H
#define NK_SM90_GEMV_COSTS_H

#define SM90_GEMV_BYTES_PER_US 45342 /* an SM reads from memory */

/* One NVFP4 token. */
#define SM90_GEMV_CODES_TALL_STEP_US 0.631313
#define SM90_GEMV_CODES_SHORT_STEP_US 0.440909
#define SM90_GEMV_CODES_SOLO_US 0.255051
#define SM90_GEMV_CODES_CLUSTER_US 0.541919
#define SM90_GEMV_CODES_RAGGED_US 0.535354

/* One NVFP4 token, by tensor map. */
#define SM90_GEMV_MAP_STEP_US 0.454545
#define SM90_GEMV_MAP_SOLO_US 0.265152
#define SM90_GEMV_MAP_CLUSTER_US 0.0505051
#define SM90_GEMV_MAP_MB_US 0.00707071

/* One 16-bit token. */
#define SM90_GEMV_F16_STEP_OF_SM_US 0.0414141
#define SM90_GEMV_F16_SOLO_US 0.191919
#define SM90_GEMV_F16_CLUSTER_US 0.0979798
#define SM90_GEMV_F16_CLUSTER_CTA_US 0.0535354

/* One token of any type, by its expert's matrix, beside the above. */
#define SM90_GEMV_EXPERT_US 2.0

/* Two to eight tokens. bf16 has fp16's costs, here and above: none were fitted to it. */
#define SM90_GEMV_FEW_STEP_OF_SM_US 0.0555556
#define SM90_GEMV_FEW_CODES_US 0.0131313
#define SM90_GEMV_FEW_F16_US 0.0287879
#define SM90_GEMV_FEW_SOLO_US 0.477273
#define SM90_GEMV_FEW_CLUSTER_US 0.286364
#define SM90_GEMV_FEW_CLUSTER_CTA_US 0.125758

#endif
