/* The sm80 row: portable mma.sync kernels for compute capability 8.0 and newer. */
#ifndef NK_SM80_BACKEND_H
#define NK_SM80_BACKEND_H

#include "backend.h"
#include "cuda/cuda_launch.h"

#include <cuda_kernels.h>

extern const nk_family sm80_gemm_family, sm80_gemv_family, sm80_route_family;

NK_DECLARE_GPU_CELLS(sm80);
extern const nk_peer_row sm80_peers;

#endif
