/* The sm120 row of the backend table. */
#include "sm120_backend.h"

#include "cuda/cuda_row.h"
#include "cuda/cuda_shared_cells.h"

CUDA_SHARED_PLANS(sm120, sm120_sort_by_expert, 32)

const nk_backend nk_backend_sm120 = {
    .name = "sm120",
    .oldest = 120,
    .newest = 129, /* what sm_120f's machine code runs on */
    CUDA_ROW,
    .families = (const nk_family *const[]){&sm120_gemm_family, &sm120_kind_f16_family, &sm120_gemv_family, NULL},
    NK_GPU_CELLS(sm120),
    CUDA_SHARED_CELLS(sm120),
};
