/* combine of any row: plan and run, given the row's kernels. */
#ifndef NK_CUDA_COMBINE_H
#define NK_CUDA_COMBINE_H

#include "backend.h"
#include "cuda_launch.h"

/* [dtype of the products], see combine.cuh; how many bytes a load takes */
typedef struct cuda_combine_kernels {
    cuda_kernel *fp16, *bf16, *fp32;
    int32_t bytes;
} cuda_combine_kernels;

/* Those of a row. */
#define CUDA_COMBINE_KERNELS(row, bytes) \
    {&row##_combine_fp16, &row##_combine_bf16, &row##_combine_fp32, bytes}

nk_status cuda_plan_combine(const nk_combine_problem *p, const cuda_combine_kernels *kernels,
                            const nk_settings *settings, nk_plan *plan, void *choice);
nk_status cuda_run_combine(const nk_combine_problem *p, const void *choice, const nk_exec *exec);

#endif
