/* route without tensor cores, for the plan of all of route. */
#ifndef NK_SM100_ROUTE_FMA_H
#define NK_SM100_ROUTE_FMA_H

#include "cuda/cuda_launch.h"
#include "sm100_route_fma_config.h"

typedef struct sm100_route_fma_choice {
    cuda_kernel *multiplies, *selects; /* no `multiplies` if logits are given */
    sm100_route_fma_params params;     /* without the workspace's address */
    cuda_grid multiply, select;
} sm100_route_fma_choice;

/* Serves everything. */
nk_status sm100_plan_route_fma(const nk_route_problem *p, const cuda_gpu *gpu, const nk_settings *settings,
                               nk_plan *plan, sm100_route_fma_choice *choice);
nk_status sm100_run_route_fma(const nk_route_problem *p, const sm100_route_fma_choice *choice, const nk_exec *exec);

#endif
