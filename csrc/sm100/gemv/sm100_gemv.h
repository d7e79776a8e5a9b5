/* gemv, and gemm of a few tokens, of the sm100 row. */
#ifndef NK_SM100_GEMV_H
#define NK_SM100_GEMV_H

#include "cuda/cuda_gemv.h"
#include "sm100/sm100_backend.h"

extern const cuda_gemv_row sm100_gemv_row;

#endif
