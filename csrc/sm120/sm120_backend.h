/* The sm120 row: consumer and workstation Blackwell. Problems that it does not take go on to the sm80 row. */
#ifndef NK_SM120_BACKEND_H
#define NK_SM120_BACKEND_H

#include "backend.h"
#include "cuda/cuda_launch.h"

#include <cuda_kernels.h>

extern const nk_family sm120_gemm_family, sm120_kind_f16_family, sm120_gemv_family;

NK_DECLARE_GPU_CELLS(sm120);

#endif
