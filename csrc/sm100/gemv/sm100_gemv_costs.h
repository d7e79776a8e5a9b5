/* The cost model of the sm100 gemv family, in microseconds. Stated, not measured: no such GPU was at hand. Only ratios
 * matter.
 *
 *   STEP_US           a warp's step, while the steps behind it are under way: a third of memory's latency
 *   .._SM_STEP_US     any step of an SM: its instructions, 1.9 of a lane for an element with CODES, 1.7 with
 *                     FP16, 3 with BF16
 *   TOKEN_KB_US       1000 bytes of tokens in an SM's shared memory
 *   SOLO_US           the beginning and the end of a CTA that has its SM alone, since no other CTA fills them
 *   CLUSTER_US        sending sums to other CTAs of a cluster, and the same for each of them
 *   LAUNCH_US         a launch, the first loads, the last store */
#ifndef NK_SM100_GEMV_COSTS_H
#define NK_SM100_GEMV_COSTS_H

#define SM100_GEMV_BYTES_PER_US 48600.0 /* an SM reads from memory: 0.9 of 8 TB/s over 148 SMs */
#define SM100_GEMV_STEP_US 0.27
#define SM100_GEMV_CODES_SM_STEP_US 0.033
#define SM100_GEMV_FP16_SM_STEP_US 0.029
#define SM100_GEMV_BF16_SM_STEP_US 0.052
#define SM100_GEMV_TOKEN_KB_US 0.02
#define SM100_GEMV_SOLO_US 0.2
#define SM100_GEMV_CLUSTER_US 0.3
#define SM100_GEMV_CLUSTER_CTA_US 0.05
#define SM100_GEMV_LAUNCH_US 1.5

#endif
