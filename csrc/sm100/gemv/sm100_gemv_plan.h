/* The tile scheduler of Blackwell's gemv on the host: which steps its clusters, CTAs and warps get. */
#ifndef NK_SM100_GEMV_PLAN_H
#define NK_SM100_GEMV_PLAN_H

#include "sm100/sm100_backend.h"

#include "sm100_gemv_config.h"

typedef enum sm100_gemv_kind {
    SM100_GEMV_CODES, /* one NVFP4 token */
    SM100_GEMV_FEW_CODES,
    SM100_GEMV_FP16,
    SM100_GEMV_BF16,
    SM100_GEMV_KINDS
} sm100_gemv_kind;

typedef enum sm100_gemv_access { SM100_GEMV_LINEAR, SM100_GEMV_BLOCKED, SM100_GEMV_NARROW } sm100_gemv_access;

typedef struct sm100_gemv_schedule {
    sm100_gemv_scheduler scheduler;
    int32_t tile, warps, smem_bytes; /* warps: 0 if no schedule fits */
    double us;                       /* by the cost model */
} sm100_gemv_schedule;

typedef struct sm100_gemv_choice {
    cuda_kernel *kernel;
    sm100_gemv_schedule schedule;
    nk_pdl pdl;
} sm100_gemv_choice;

/* How many clusters of each size run at once, by tile; 0 for sizes that are not used. Only the driver knows. */
typedef struct sm100_gemv_clusters {
    const cuda_gpu *gpu;
    int32_t at_once[2][SM100_GEMV_MAX_CLUSTER + 1];
} sm100_gemv_clusters;

sm100_gemv_kind sm100_gemv_kind_of(const nk_gemv_problem *p);
sm100_gemv_access sm100_gemv_access_of(const nk_gemv_problem *p);
int32_t sm100_gemv_warps_of(int tile);

/* The fastest schedule that fits, of one tile or NK_TILE_ANY. batch_invariant: one that depends on K alone. */
sm100_gemv_schedule sm100_gemv_find_schedule(const nk_gemv_problem *p, const sm100_gemv_clusters *resident, int forced,
                                             bool batch_invariant);

#endif
