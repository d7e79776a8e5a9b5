/* quantize, dequantize and relayout of any row: plans and runs, given the row's kernels. */
#ifndef NK_CUDA_QUANTIZE_H
#define NK_CUDA_QUANTIZE_H

#include "backend.h"
#include "cuda_launch.h"

/* [0, 1: whether there is `up`; 2: recipe four_six][dtype of x][whether every address is aligned], see quantize.cuh;
 * `token`: quantize_token.cuh */
typedef struct cuda_quantize_kernels {
    cuda_kernel *experts, *encode[3][3][2], *token[3][3][2], *amax[2][3][2];
} cuda_quantize_kernels;

/* [dtype of the output], see dequantize.cuh */
typedef struct cuda_dequantize_kernels {
    cuda_kernel *decode[3];
} cuda_dequantize_kernels;

/* [layout to][whether every address is aligned], see relayout.cuh */
typedef struct cuda_relayout_kernels {
    cuda_kernel *convert[2][2];
} cuda_relayout_kernels;

/* Those of a row. */
#define CUDA_QUANTIZE_PAIR(kernel) {&kernel##_narrow, &kernel}
#define CUDA_QUANTIZE_TABLE(kernel) \
    {CUDA_QUANTIZE_PAIR(kernel##fp16), CUDA_QUANTIZE_PAIR(kernel##bf16), CUDA_QUANTIZE_PAIR(kernel##fp32)}
#define CUDA_QUANTIZE_KERNELS(row)                                                                              \
    {                                                                                                           \
        .experts = &row##_quantize_experts,                                                                     \
        .encode = {CUDA_QUANTIZE_TABLE(row##_quantize_), CUDA_QUANTIZE_TABLE(row##_quantize_gated_),            \
                   CUDA_QUANTIZE_TABLE(row##_quantize_four_six_)},                                              \
        .token = {CUDA_QUANTIZE_TABLE(row##_quantize_token_), CUDA_QUANTIZE_TABLE(row##_quantize_token_gated_), \
                  CUDA_QUANTIZE_TABLE(row##_quantize_token_four_six_)},                                         \
        .amax = {CUDA_QUANTIZE_TABLE(row##_quantize_amax_), CUDA_QUANTIZE_TABLE(row##_quantize_amax_gated_)},   \
    }
#define CUDA_DEQUANTIZE_KERNELS(row)                                               \
    {                                                                              \
        {                                                                          \
            &row##_dequantize_fp16, &row##_dequantize_bf16, &row##_dequantize_fp32 \
        }                                                                          \
    }
#define CUDA_RELAYOUT_KERNELS(row)                                                                      \
    {                                                                                                   \
        {                                                                                               \
            CUDA_QUANTIZE_PAIR(row##_relayout_to_linear), CUDA_QUANTIZE_PAIR(row##_relayout_to_blocked) \
        }                                                                                               \
    }

/* A plan depends on no setting. */
nk_status cuda_plan_quantize(const nk_quantize_problem *p, const cuda_quantize_kernels *kernels,
                             const nk_settings *settings, nk_plan *plan, void *choice);
nk_status cuda_run_quantize(const nk_quantize_problem *p, const void *choice, const nk_exec *exec);
nk_status cuda_plan_dequantize(const nk_dequantize_problem *p, const cuda_dequantize_kernels *kernels,
                               const nk_settings *settings, nk_plan *plan, void *choice);
nk_status cuda_run_dequantize(const nk_dequantize_problem *p, const void *choice, const nk_exec *exec);
nk_status cuda_plan_relayout(const nk_relayout_problem *p, const cuda_relayout_kernels *kernels,
                             const nk_settings *settings, nk_plan *plan, void *choice);
nk_status cuda_run_relayout(const nk_relayout_problem *p, const void *choice, const nk_exec *exec);

#endif
