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
    NK_GPU_CELLS(sm90),
};
