/* Holds the groups of one grouped GEMM launch, for host and device: they travel by value. */
#ifndef NK_CUDA_GROUPS_H
#define NK_CUDA_GROUPS_H

#include "nk_problem.h"

/* 10 KB: parameters may have 32,764 bytes, but all of them travel with every launch. */
#define CUDA_GROUPS_PER_LAUNCH 32

/* Shared memory that finding an expert takes, before anything else uses it. */
#define CUDA_EXPERT_SCAN_BYTES 256

typedef struct cuda_group {
    nk_gemm_problem gemm;
    uint32_t first_iter;     /* iterations of the groups before it, see cuda/stream_k.cuh */
    uint32_t k_steps;        /* of a tile */
    uint32_t iters_per_tile; /* k_steps, or 1 if no tile is split */
} cuda_group;

/* List form: `count` groups. Contiguous form: one, `all` of the problem, whose rows `offsets` (on the device) divides
 * among `experts`; only the kernel knows how many tiles of tokens they have. `rows` has no data in the list form. */
typedef struct cuda_groups {
    uint32_t ctas;  /* of the kernel that multiplies */
    uint32_t iters; /* list: of all groups */
    int count;
    const int32_t *offsets;
    int64_t experts;
    int64_t a_sf_bytes; /* blocked sfa of the contiguous form: its size */
    nk_token_rows rows;
    float *partials; /* the workspace of cuda/stream_k.cuh */
    cuda_group group[CUDA_GROUPS_PER_LAUNCH];
} cuda_groups;

#endif
