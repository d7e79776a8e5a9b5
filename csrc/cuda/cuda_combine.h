/* combine of any row: plan and run, given the row's kernels. */
#ifndef NK_CUDA_COMBINE_H
#define NK_CUDA_COMBINE_H

#include "backend.h"
#include "cuda_launch.h"

/* [dtype of the products], see combine.cuh; how many bytes a load takes */
typedef struct cuda_combine_kernels {
    cuda_kernel *halves, *bfloats, *floats;
    int32_t bytes;
} cuda_combine_kernels;

/* Those of a row. */
#define CUDA_COMBINE_KERNELS(row, bytes) \
    {&row##_combine_halves, &row##_combine_bfloats, &row##_combine_floats, bytes}

nk_status cuda_plan_combine(const nk_combine_problem *p, const cuda_combine_kernels *kernels,
                            const nk_settings *settings, nk_plan *plan, void *choice);
nk_status cuda_run_combine(const nk_combine_problem *p, const void *choice, const nk_exec *exec);

#endif
