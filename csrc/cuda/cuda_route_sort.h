/* Launches the permutation of a router as a kernel of its own, see route_sort_kernel.cuh: behind a router, and as
 * sort_by_expert of any row, given the row's kernel. */
#ifndef NK_CUDA_ROUTE_SORT_H
#define NK_CUDA_ROUTE_SORT_H

#include "backend.h"
#include "cuda_launch.h"

/* Each CTA counts all entries, so there are no more than run at once. */
int64_t cuda_sort_ctas(int64_t entries, int32_t sms);

nk_status cuda_route_sort(cuda_kernel *kernel, const nk_route_problem *p, int64_t ctas, bool overlap,
                          const nk_exec *exec);

typedef struct cuda_sort_by_expert_kernels {
    cuda_kernel *sorts;
} cuda_sort_by_expert_kernels;

nk_status cuda_plan_sort_by_expert(const nk_sort_by_expert_problem *p, const cuda_sort_by_expert_kernels *kernels,
                                   const nk_settings *settings, nk_plan *plan, void *choice);
nk_status cuda_run_sort_by_expert(const nk_sort_by_expert_problem *p, const void *choice, const nk_exec *exec);

#endif
