/* gemv, and gemm of a few tokens, of Blackwell's rows: plan and run, given the row's kernels and costs. */
#ifndef NK_CUDA_GEMV_H
#define NK_CUDA_GEMV_H

#include "backend.h"
#include "cuda_launch.h"
#include "gemv_config.h"

typedef enum gemv_kind {
    GEMV_CODES, /* one NVFP4 token */
    GEMV_FEW_CODES,
    GEMV_FP16,
    GEMV_BF16,
    GEMV_KINDS
} gemv_kind;

typedef enum gemv_access { GEMV_LINEAR, GEMV_BLOCKED, GEMV_NARROW } gemv_access;

typedef struct gemv_schedule {
    gemv_scheduler scheduler;
    int32_t tile, warps, smem_bytes; /* warps: 0 if no schedule fits */
    double us;                       /* by the cost model */
} gemv_schedule;

typedef struct gemv_choice {
    cuda_kernel *kernel;
    gemv_schedule schedule;
    nk_pdl pdl;
} gemv_choice;

/* What a row's cost model assumes, in microseconds. Only ratios matter. */
typedef struct gemv_costs {
    double bytes_per_us; /* an SM reads from memory */
    double step_us;      /* a warp's step, while the steps behind it are under way */
    double codes_sm_step_us, fp16_sm_step_us, bf16_sm_step_us; /* any step of an SM, of its instructions */
    double token_kb_us;                                        /* 1000 bytes of tokens in an SM's shared memory */
    double solo_us; /* the beginning and the end of a CTA that has its SM alone: no other CTA fills them */
    double cluster_us, cluster_cta_us; /* sending sums to other CTAs of a cluster, and the same for each of them */
    double launch_us;                  /* a launch, the first loads, the last store */
} gemv_costs;

/* What a row has of it. */
typedef struct cuda_gemv_row {
    const nk_family *family;
    cuda_kernel *kernels[GEMV_KINDS][3]; /* [kind][access] */
    const gemv_costs *costs;
    int32_t max_cluster; /* CTAs that may split K */
} cuda_gemv_row;

/* How many clusters of each size run at once, by tile; 0 for sizes that are not used. Only the driver knows. */
typedef struct gemv_clusters {
    const cuda_gpu *gpu;
    int32_t at_once[2][GEMV_MAX_CLUSTER + 1];
} gemv_clusters;

gemv_kind cuda_gemv_kind_of(const nk_gemv_problem *p);
gemv_access cuda_gemv_access_of(const nk_gemv_problem *p);
int32_t cuda_gemv_warps_of(int tile);

/* The fastest schedule that fits, of one tile or NK_TILE_ANY. batch_invariant: one that depends on K alone. */
gemv_schedule cuda_gemv_find_schedule(const nk_gemv_problem *p, const cuda_gemv_row *row, const gemv_clusters *resident,
                                      int forced, bool batch_invariant);

nk_status cuda_plan_gemv(const nk_gemv_problem *p, const cuda_gemv_row *row, const nk_settings *settings, nk_plan *plan,
                         void *choice);
nk_status cuda_run_gemv(const nk_gemv_problem *p, const void *choice, const nk_exec *exec);

/* Defines a row's family, its <row>_gemv_row and its cell. */
#define CUDA_GEMV_ACCESSES(row, name) \
    {&row##_gemv_##name##_linear, &row##_gemv_##name##_blocked, &row##_gemv_##name##_narrow}
#define CUDA_GEMV_ROW(row, most_ctas, of_row)                                                                     \
    const nk_family row##_gemv_family = {#row, "gemv", NK_TILE_NAMES(GEMV_TILES), NULL, NULL, NULL};              \
    const cuda_gemv_row row##_gemv_row = {.family = &row##_gemv_family,                                           \
                                          .kernels = {[GEMV_CODES] = CUDA_GEMV_ACCESSES(row, codes),              \
                                                      [GEMV_FEW_CODES] = CUDA_GEMV_ACCESSES(row, few_codes),      \
                                                      [GEMV_FP16] = CUDA_GEMV_ACCESSES(row, fp16),                \
                                                      [GEMV_BF16] = CUDA_GEMV_ACCESSES(row, bf16)},               \
                                          .costs = &(of_row),                                                     \
                                          .max_cluster = (most_ctas)};                                            \
    nk_status row##_plan_gemv(const nk_gemv_problem *p, const nk_settings *settings, nk_plan *plan, void *choice) \
    {                                                                                                             \
        return cuda_plan_gemv(p, &row##_gemv_row, settings, plan, choice);                                        \
    }                                                                                                             \
    nk_status row##_run_gemv(const nk_gemv_problem *p, const void *choice, const nk_exec *exec)                   \
    {                                                                                                             \
        return cuda_run_gemv(p, choice, exec);                                                                    \
    }

#endif
