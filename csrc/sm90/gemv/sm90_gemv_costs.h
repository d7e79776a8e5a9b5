/* What the sm90 gemv family's work takes on an H200, 2026-11. All times are in microseconds (us); only ratios matter.
 *
 * The fits were in cycles of 1.98 GHz. STEP: of a team beside all others of an SM, latencies before all.
 * STEP_OF_SM: of any step of an SM, what it issues. CODES, HALVES: of 1000 bytes of tokens in an SM's shared memory
 * that come as such. SOLO: of a beginning and an end that no other CTA of the SM fills. CLUSTER, CLUSTER_CTA: sums go
 * to other CTAs, and all must have room at once. RAGGED: of rows that are no whole tiles. MB: of a megabyte of the
 * matrix, where memory is what takes time and the kernel takes more of it. */
#ifndef NK_SM90_GEMV_COSTS_H
#define NK_SM90_GEMV_COSTS_H

#define SM90_GEMV_BYTES_PER_US 45342 /* of an SM, from memory */

/* One NVFP4 token. 36 matrices in up to 50 shapes each: the picked one takes 0.4 % more than the best on average, 2.5 %
 * at most. */
#define SM90_GEMV_CODES_TALL_STEP_US 0.631313
#define SM90_GEMV_CODES_SHORT_STEP_US 0.440909
#define SM90_GEMV_CODES_SOLO_US 0.255051
#define SM90_GEMV_CODES_CLUSTER_US 0.541919
#define SM90_GEMV_CODES_RAGGED_US 0.535354

/* One NVFP4 token, by tensor map. 31 matrices: 0.8 % and 8 %. */
#define SM90_GEMV_MAP_STEP_US 0.454545
#define SM90_GEMV_MAP_SOLO_US 0.265152
#define SM90_GEMV_MAP_CLUSTER_US 0.0505051
#define SM90_GEMV_MAP_MB_US 0.00707071

/* One token of 16 bits; with the next, 70 cases of 10 matrices and 1 to 8 tokens in up to 24 shapes: 1.1 % and 7 %. */
#define SM90_GEMV_HALVES_STEP_OF_SM_US 0.0414141
#define SM90_GEMV_HALVES_SOLO_US 0.191919
#define SM90_GEMV_HALVES_CLUSTER_US 0.0979798
#define SM90_GEMV_HALVES_CLUSTER_CTA_US 0.0535354

/* A few tokens; bf16 was not timed and takes fp16's. */
#define SM90_GEMV_FEW_STEP_OF_SM_US 0.0555556
#define SM90_GEMV_FEW_CODES_US 0.0131313
#define SM90_GEMV_FEW_HALVES_US 0.0287879
#define SM90_GEMV_FEW_SOLO_US 0.477273
#define SM90_GEMV_FEW_CLUSTER_US 0.286364
#define SM90_GEMV_FEW_CLUSTER_CTA_US 0.125758

#endif
