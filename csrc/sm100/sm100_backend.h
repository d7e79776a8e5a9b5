/* The sm100 row: Blackwell's data-center GPUs. Problems that it does not take go on to the sm80 row. */
#ifndef NK_SM100_BACKEND_H
#define NK_SM100_BACKEND_H

#include "backend.h"
#include "cuda/cuda_launch.h"

#include <cuda_kernels.h>

extern const nk_family sm100_gemm_family, sm100_kind_f16_family, sm100_gemv_family, sm100_route_family;

NK_DECLARE_GPU_CELLS(sm100);

#endif
