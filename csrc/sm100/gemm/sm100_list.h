/* A list of groups by launches of a family's tiles: of sm100/gemm, or of sm100/kind_f16 for 16-bit tokens. */
#ifndef NK_SM100_LIST_H
#define NK_SM100_LIST_H

#include "sm100_gemm_plan.h"

/* What a family says of one group: its gemm. */
typedef struct sm100_list_family {
    const nk_family *family;
    cuda_kernel *const *kernels; /* of each tile, which take lists */
    int32_t tiles, invariant;    /* how many; the one with batch_invariant */
    bool either_on_lanes;        /* tokens may be, where that makes fewer tiles */
    const char *(*why_no_tile)(const sm100_gemm_product *product, bool batch_invariant);
    const char *(*why_not_tile)(const sm100_gemm_product *product, cuda_kernel *const kernels[], const cuda_gpu *gpu,
                                const sm100_gemm_candidate *c);
    sm100_gemm_candidate (*candidate_of)(const sm100_gemm_product *product, const cuda_gpu *gpu, int tile,
                                         bool tokens_are_mma_m);
    double (*us)(const sm100_gemm_product *product, int tile, double waves);
    int32_t (*ctas)(const sm100_gemm_candidate *c, double count);
    void (*describe)(const sm100_gemm_product *product, const nk_settings *settings, const cuda_kernel *kernel,
                     const sm100_gemm_candidate *c, double count, nk_plan *plan);
    sm100_gemm_scheduler (*work_of)(const sm100_gemm_product *product, const sm100_gemm_candidate *c);
    cuda_boxes (*boxes_of)(const sm100_gemm_product *product, int tile, const sm100_gemm_scheduler *work, int of);
    cuda_grid (*grid_of)(const sm100_gemm_product *product, int tile, int32_t ctas, bool overlap);
} sm100_list_family;

/* There may be any number of groups: run plans each launch again, by these. */
typedef struct sm100_list_choice {
    int32_t forced; /* a tile, or NK_TILE_ANY */
    bool batch_invariant, overlap;
} sm100_list_choice;

nk_status sm100_list_plan(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                          sm100_list_choice *choice);
nk_status sm100_list_run(const nk_grouped_gemm_problem *p, const sm100_list_choice *choice, const nk_exec *exec);

#endif
