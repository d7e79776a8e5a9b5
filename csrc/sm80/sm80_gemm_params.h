/* What a GEMM launch needs beyond its problem. */
#ifndef NK_SM80_GEMM_PARAMS_H
#define NK_SM80_GEMM_PARAMS_H

#include <stdint.h>

typedef struct sm80_gemm_params {
    uint32_t m_tiles, n_tiles;
    int steps, steps_per_split, splits; /* of K */
    float *partials;                    /* splits > 1: fp32 sums of every split tile */
} sm80_gemm_params;

#endif
