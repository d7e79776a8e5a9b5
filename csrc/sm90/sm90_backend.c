/* The sm90 row of the backend table. */
#include "sm90_backend.h"

#include "cuda/cuda_row.h"

const nk_backend nk_backend_sm90 = {
    .name = "sm90",
    .oldest = 90,
    .newest = 90,
    CUDA_ROW,
    .families = (const nk_family *const[]){&sm90_gemv_family, &sm90_gemm_family, &sm90_kind_f16_family,
                                           &sm90_route_family, NULL},
    .gemv = {sm90_plan_gemv, sm90_run_gemv},
    .gemm = {sm90_plan_gemm, sm90_run_gemm},
    .dual_gemm = {sm90_plan_dual_gemm, sm90_run_dual_gemm},
    .grouped_gemm = {sm90_plan_grouped_gemm, sm90_run_grouped_gemm},
    .grouped_dual_gemm = {sm90_plan_grouped_dual_gemm, sm90_run_grouped_dual_gemm},
    .route = {sm90_plan_route, sm90_run_route},
};
