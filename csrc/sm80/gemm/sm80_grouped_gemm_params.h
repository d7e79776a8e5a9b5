/* The groups of one grouped GEMM launch: they travel by value. */
#ifndef NK_SM80_GROUPED_GEMM_PARAMS_H
#define NK_SM80_GROUPED_GEMM_PARAMS_H

#include "nk_problem.h"

/* 9 KB: a launch's parameters may have 32,764 bytes, but all of them travel with every launch. */
#define SM80_GROUPS_PER_LAUNCH 32

/* Shared memory that finding an expert takes, before anything else uses it. */
#define SM80_EXPERT_SCAN_BYTES 256

typedef struct sm80_group {
    nk_gemm_problem gemm;
    uint32_t begin; /* units of the groups before it */
    uint32_t steps; /* of K in a tile */
    uint32_t units; /* what a tile counts, see sm80_gemm_params.h */
} sm80_group;

/* List form: `count` groups. Contiguous form: one, `all` of the problem, whose rows `offsets` (on the device) deals out
 * to `experts`; how many tiles of tokens they have, only the kernel knows. All groups' units are dealt out to CTAs. */
typedef struct sm80_grouped_gemm_params {
    uint32_t ctas;  /* of the kernel that multiplies */
    uint32_t units; /* list: of all groups */
    int count;
    const int32_t *offsets;
    int64_t experts;
    int64_t a_sf_bytes; /* blocked sfa of the contiguous form: its size */
    float *partials;    /* as in sm80_gemm_params */
    sm80_group group[SM80_GROUPS_PER_LAUNCH];
} sm80_grouped_gemm_params;

#endif
