/* What a GEMM launch needs beyond its problem. */
#ifndef NK_SM80_GEMM_PARAMS_H
#define NK_SM80_GEMM_PARAMS_H

#include "nk_problem.h"

/* cuda/split.cuh says how tiles are dealt out. */
typedef struct sm80_gemm_params {
    uint32_t m_tiles, n_tiles, tiles; /* tiles: of the whole batch */
    uint32_t steps;                   /* of K in a tile */
    uint32_t units;                   /* of a tile: its steps, or 1 where no tile is split */
    uint32_t units_per_cta;
    float *partials; /* fp32 sums [part][quad][thread][4] */
} sm80_gemm_params;

/* What grouped_dual_gemm's kernels take behind the groups. */
typedef struct sm80_gating {
    nk_alpha alpha_ups;
    nk_activation activation;
    nk_encoded_output encoded;
} sm80_gating;

#endif
