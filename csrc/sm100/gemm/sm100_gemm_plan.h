/* What a tile of the sm100 GEMM family makes of a product, and its launch. */
#ifndef NK_SM100_GEMM_PLAN_H
#define NK_SM100_GEMM_PLAN_H

#include "sm100/sm100_backend.h"

#include "sm100_gemm_config.h"

/* What the family multiplies: for dual_gemm `first` is the product with b1, and `ups` is b2; for grouped_gemm it has
 * the tokens of all experts. */
typedef struct sm100_gemm_product {
    const nk_gemm_problem *first;
    const nk_operand *ups; /* or NULL */
    const void *problem;   /* what the kernel takes */
    bool has_experts;
    sm100_gemm_experts experts; /* as the kernel takes them */
} sm100_gemm_product;

typedef struct sm100_gemm_choice {
    cuda_kernel *kernel;
    int32_t tile, grid;
    bool overlap;
    double us; /* that the model of its costs says */
    sm100_gemm_work work;
} sm100_gemm_choice;

/* `kernels`: of each tile. */
nk_status sm100_gemm_plan(const sm100_gemm_product *product, const nk_settings *settings,
                          cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT], nk_plan *plan, sm100_gemm_choice *choice);
nk_status sm100_gemm_run(const sm100_gemm_product *product, const sm100_gemm_choice *choice, const nk_exec *exec);

#endif
