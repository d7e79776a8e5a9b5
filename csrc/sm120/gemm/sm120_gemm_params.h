/* What a GEMM launch needs beyond its problem. */
#ifndef NK_SM120_GEMM_PARAMS_H
#define NK_SM120_GEMM_PARAMS_H

#include "nk_problem.h"

/* Tiles of gemm and dual_gemm. */
typedef struct sm120_gemm_scheduler {
    uint32_t m_tiles, n_tiles, tiles; /* tiles: of the whole batch */
} sm120_gemm_scheduler;

/* Where K of each tile is divided among `parts` CTAs; 1: of none. */
typedef struct sm120_split {
    float *partials;    /* fp32 [tile][part][quad][thread][4], see cuda/stream_k.cuh */
    uint64_t *counters; /* of a tile's parts that are in the workspace, see cuda/counters.cuh */
    uint64_t base;
    uint32_t parts;
} sm120_split;

/* What grouped_dual_gemm takes behind the groups. */
typedef struct sm120_gating {
    nk_operand ups;
    nk_alpha alpha_ups;
    nk_bias bias_ups;
    nk_activation activation;
} sm120_gating;

#endif
