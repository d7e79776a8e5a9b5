/* route without tensor cores, of Blackwell's rows: plan and run, given the row's kernels. */
#ifndef NK_CUDA_ROUTE_FMA_H
#define NK_CUDA_ROUTE_FMA_H

#include "backend.h"
#include "cuda_gpu.h"
#include "cuda_launch.h"
#include "route_fma_config.h"

typedef struct cuda_route_fma_choice {
    cuda_kernel *multiplies, *selects; /* no `multiplies` if logits are given */
    route_fma_params params;           /* without the workspace's address */
    cuda_grid multiply, select;
} cuda_route_fma_choice;

typedef struct cuda_route_fma_kernels {
    cuda_kernel *multiply[ROUTE_FMA_TILE_COUNT], *select, *select_sums;
} cuda_route_fma_kernels;

/* Those of a row. */
#define CUDA_ROUTE_FMA_KERNELS(row)                         \
    {.multiply = {&row##_route_fma32, &row##_route_fma128}, \
     .select = &row##_route_select,                         \
     .select_sums = &row##_route_select_sums}

/* Serves everything. */
nk_status cuda_plan_route_fma(const nk_route_problem *p, const cuda_route_fma_kernels *kernels, const cuda_gpu *gpu,
                              const nk_settings *settings, nk_plan *plan, cuda_route_fma_choice *choice);
nk_status cuda_run_route_fma(const nk_route_problem *p, const cuda_route_fma_choice *choice, const nk_exec *exec);

#endif
