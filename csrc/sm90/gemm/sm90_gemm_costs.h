/* What the sm90 GEMM family takes. All times are in microseconds (us). They are compared with the gemv's
 * (sm90_gemv_costs.h) as times; among tiles only their ratios matter.
 *
 * From a sweep of 1414 launches of 96 problems on an NVIDIA H200, 2026-11: the choice takes 0.1 % more than the
 * best on average, 4.3 % at most. Experts were not in it. */
#ifndef NK_SM90_GEMM_COSTS_H
#define NK_SM90_GEMM_COSTS_H

#define SM90_GEMM_LAUNCH_US 2.017            /* two launches, and what no size changes */
#define SM90_GEMM_NATURAL_K_LAUNCH_US 1.0    /* the same without a prologue kernel */
#define SM90_GEMM_NATURAL_K_FP16_US 0.05     /* its step, beyond others': lanes convert more scale factors */
#define SM90_GEMM_NATURAL_K_BF16_US 0.12     /* the same of bf16, by more instructions */
#define SM90_GEMM_TOKEN_BYTES_PER_US 1.574e6 /* the prologue kernel writes */
#define SM90_GEMM_TENSOR_TOKEN_US 0.00422    /* a token in a step of a CTA: tensor cores alone */
#define SM90_GEMM_ISSUE_US 0.2181            /* a step of a CTA: decoding weights, and waiting */
#define SM90_GEMM_ISSUE_TOKEN_US 0.002498    /* and for each token: busy tensor cores slow the issue down */
#define SM90_GEMM_STAGE_US 0.007392          /* advancing to the next stage */
#define SM90_GEMM_LANES_US 0.01286           /* scale factors of a step that lanes copy */
#define SM90_GEMM_BUSY 0.04648               /* by how much a step is longer if all SMs are busy */
#define SM90_GEMM_BYTES_PER_US 3.993e6       /* weights, from memory: no loop is faster */
#define SM90_GEMM_TILE_US 1.954              /* a tile: its beginning and epilogue */
#define SM90_GEMM_TILE_TOKEN_US 0.0103       /* and for each token of it */
#define SM90_GEMM_SPLIT_K_US 0.7512          /* a split-K tile: its CTAs start, exit and reduce */
#define SM90_GEMM_GEMV_US 2.455              /* what a gemv takes beyond what its own model says */

#endif
