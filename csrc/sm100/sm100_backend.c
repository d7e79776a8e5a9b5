/* The sm100 row of the backend table. */
#include "sm100_backend.h"

#include "cuda/cuda_row.h"
#include "cuda/cuda_shared_cells.h"

CUDA_SHARED_PLANS(sm100, sm100_route_sort, 32)

const nk_backend nk_backend_sm100 = {
    .name = "sm100",
    .oldest = 100,
    .newest = 103, /* what sm_100f's machine code runs on */
    CUDA_ROW,
    .families = (const nk_family *const[]){&sm100_gemm_family, &sm100_kind_f16_family, &sm100_gemv_family,
                                           &sm100_route_family, NULL},
    .gemv = {sm100_plan_gemv, sm100_run_gemv},
    .gemm = {sm100_plan_gemm, sm100_run_gemm},
    .dual_gemm = {sm100_plan_dual_gemm, sm100_run_dual_gemm},
    .grouped_gemm = {sm100_plan_grouped_gemm, sm100_run_grouped_gemm},
    .grouped_dual_gemm = {sm100_plan_grouped_dual_gemm, sm100_run_grouped_dual_gemm},
    .route = {sm100_plan_route, sm100_run_route},
    CUDA_SHARED_CELLS(sm100),
};
