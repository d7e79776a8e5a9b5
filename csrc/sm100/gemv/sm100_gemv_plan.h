/* How the work of a gemv on Blackwell is dealt to clusters, CTAs and warps. */
#ifndef NK_SM100_GEMV_PLAN_H
#define NK_SM100_GEMV_PLAN_H

#include "sm100/sm100_backend.h"

#include "sm100_gemv_config.h"

typedef enum sm100_gemv_kind {
    SM100_GEMV_CODES, /* one NVFP4 token */
    SM100_GEMV_FEW_CODES,
    SM100_GEMV_HALVES,
    SM100_GEMV_BFLOATS,
    SM100_GEMV_KINDS
} sm100_gemv_kind;

typedef enum sm100_gemv_access { SM100_GEMV_LINEAR, SM100_GEMV_BLOCKED, SM100_GEMV_NARROW } sm100_gemv_access;

typedef struct sm100_gemv_deal {
    sm100_gemv_work work;
    int32_t tile, warps, smem_bytes; /* warps: 0 where none fits */
    double us;                       /* that the model of its costs says */
} sm100_gemv_deal;

typedef struct sm100_gemv_choice {
    cuda_kernel *kernel;
    sm100_gemv_deal deal;
    nk_pdl pdl;
} sm100_gemv_choice;

/* How many clusters of each size run at once, by tile; 0 where a size is not used. Only the driver knows. */
typedef struct sm100_gemv_room {
    const cuda_gpu *gpu;
    int32_t at_once[2][SM100_GEMV_CLUSTER + 1];
} sm100_gemv_room;

sm100_gemv_kind sm100_gemv_kind_of(const nk_gemv_problem *p);
sm100_gemv_access sm100_gemv_access_of(const nk_gemv_problem *p);
int32_t sm100_gemv_warps_of(int tile);

/* The fastest deal of those that fit, of one tile or NK_TILE_ANY. `alone`: one that depends on K alone. */
sm100_gemv_deal sm100_gemv_find_deal(const nk_gemv_problem *p, const sm100_gemv_room *room, int forced, bool alone);

#endif
