/* Holds the groups of one grouped GEMM launch, for host and device: they travel by value. */
#ifndef NK_CUDA_GROUPS_H
#define NK_CUDA_GROUPS_H

#include "nk_problem.h"

/* 9 KB: parameters may have 32,764 bytes, but all of them travel with every launch. */
#define CUDA_GROUPS_PER_LAUNCH 32

/* Shared memory that finding an expert takes, before anything else uses it. */
#define CUDA_EXPERT_SCAN_BYTES 256

typedef struct cuda_group {
    nk_gemm_problem gemm;
    uint32_t begin; /* units of the groups before it */
    uint32_t steps; /* of K in a tile */
    uint32_t units; /* of a tile, see cuda/split.cuh */
} cuda_group;

/* List form: `count` groups. Contiguous form: one, `all` of the problem, whose rows `offsets` (on the device) divides
 * among `experts`; only the kernel knows how many tiles of tokens they have. The units of all groups are dealt
 * out to CTAs. `rows` has no data in the list form. */
typedef struct cuda_groups {
    uint32_t ctas;  /* of the kernel that multiplies */
    uint32_t units; /* list: of all groups */
    int count;
    const int32_t *offsets;
    int64_t experts;
    int64_t a_sf_bytes; /* blocked sfa of the contiguous form: its size */
    nk_token_rows rows;
    float *partials; /* see cuda/split.cuh */
    cuda_group group[CUDA_GROUPS_PER_LAUNCH];
} cuda_groups;

#endif
