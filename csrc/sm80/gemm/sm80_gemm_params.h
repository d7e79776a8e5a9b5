/* What a GEMM launch needs beyond its problem. */
#ifndef NK_SM80_GEMM_PARAMS_H
#define NK_SM80_GEMM_PARAMS_H

#include "nk_problem.h"

/* The tile scheduler of gemm and dual_gemm, see cuda/stream_k.cuh. */
typedef struct sm80_gemm_scheduler {
    uint32_t m_tiles, n_tiles, tiles; /* tiles: of the whole batch */
    uint32_t k_steps;                 /* of a tile */
    uint32_t iters_per_tile;          /* k_steps, or 1 if no tile is split */
    uint32_t iters_per_cta;
    float *partials; /* fp32 [partial sums][quad][thread][4] */
} sm80_gemm_scheduler;

/* What the kernels of grouped_dual_gemm, and those of grouped_gemm with an activation, take behind the groups. The
 * latter have no ups. */
typedef struct sm80_gating {
    nk_operand ups;
    nk_alpha alpha_ups;
    nk_bias bias_ups;
    nk_activation activation;
    nk_encoded_output encoded;
} sm80_gating;

#endif
