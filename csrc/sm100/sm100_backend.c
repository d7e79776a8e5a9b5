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
    NK_GPU_CELLS(sm100),
    CUDA_SHARED_CELLS(sm100),
};
