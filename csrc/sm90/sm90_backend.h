/* The sm90 row: Hopper. Problems that it does not take go on to the sm80 row. */
#ifndef NK_SM90_BACKEND_H
#define NK_SM90_BACKEND_H

#include "backend.h"
#include "cuda/cuda_launch.h"

#include <cuda_kernels.h>

extern const nk_family sm90_gemv_family, sm90_gemm_family, sm90_kind_f16_family, sm90_route_family;

NK_DECLARE_GPU_CELLS(sm90);

#endif
