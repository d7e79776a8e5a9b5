/* gemv, and gemm of a few tokens, of the sm120 row. */
#ifndef NK_SM120_GEMV_H
#define NK_SM120_GEMV_H

#include "cuda/cuda_gemv.h"
#include "sm120/sm120_backend.h"

extern const cuda_gemv_row sm120_gemv_row;

#endif
