/* The sm80 row of the backend table. */
#include "sm80_backend.h"

#include "cuda/cuda_combine.h"
#include "cuda/cuda_route_sort.h"
#include "cuda/cuda_row.h"

#define CELL(op) {sm80_plan_##op, sm80_run_##op}

const nk_backend nk_backend_sm80 = {
    .name = "sm80",
    .oldest = 80,
    .newest = CUDA_ANY_NEWER,
    CUDA_ROW,
    .families = (const nk_family *const[]){&sm80_gemm_family, &sm80_gemv_family, &sm80_route_family, NULL},
    .gemv = CELL(gemv),
    .gemm = CELL(gemm),
    .dual_gemm = CELL(dual_gemm),
    .grouped_gemm = CELL(grouped_gemm),
    .grouped_dual_gemm = CELL(grouped_dual_gemm),
    .quantize = {sm80_plan_quantize, cuda_run_quantize},
    .dequantize = {sm80_plan_dequantize, cuda_run_dequantize},
    .relayout = {sm80_plan_relayout, cuda_run_relayout},
    .route = CELL(route),
    .sort_by_expert = {sm80_plan_sort_by_expert, cuda_run_sort_by_expert},
    .combine = {sm80_plan_combine, cuda_run_combine},
};
