/* The sm80 row of the backend table. */
#include "sm80_backend.h"

#include "cuda/cuda_row.h"
#include "cuda/cuda_shared_cells.h"

CUDA_SHARED_PLANS(sm80, sm80_sort_by_expert, 16)

const nk_backend nk_backend_sm80 = {
    .name = "sm80",
    .oldest = 80,
    .newest = CUDA_ANY_NEWER,
    CUDA_ROW,
    .families = (const nk_family *const[]){&sm80_gemm_family, &sm80_gemv_family, &sm80_route_family, NULL},
    NK_GPU_CELLS(sm80),
    CUDA_SHARED_CELLS(sm80),
    .peers = &sm80_peers,
};
