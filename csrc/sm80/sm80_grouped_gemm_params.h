/* The groups of one grouped GEMM launch: they travel by value. */
#ifndef NK_SM80_GROUPED_GEMM_PARAMS_H
#define NK_SM80_GROUPED_GEMM_PARAMS_H

#include "../nk_problem.h"

/* A launch's parameters end at 32,764 bytes. */
#define SM80_GROUPS_PER_LAUNCH 112

/* Shared memory that finding an expert takes, before anything else uses it. */
#define SM80_EXPERT_SCAN_BYTES 256

typedef struct sm80_group {
    nk_gemm_problem gemm;
    uint32_t first_tile; /* tiles of the groups before it */
} sm80_group;

/* List form: `count` groups. Contiguous form: one, `all` of the problem, whose rows `offsets` (on the device) deals out
 * to `experts`; how many tokens each has, and so its tiles, only the kernel knows. */
typedef struct sm80_grouped_gemm_params {
    uint32_t tiles;  /* list: all; contiguous: at most so many of tokens */
    uint32_t splits; /* of every group's K */
    int count;
    const int32_t *offsets;
    int64_t experts;
    int64_t a_sf_bytes; /* blocked sfa of the contiguous form: its size */
    float *partials;    /* splits > 1: fp32 sums of every split tile */
    sm80_group group[SM80_GROUPS_PER_LAUNCH];
} sm80_grouped_gemm_params;

#endif
