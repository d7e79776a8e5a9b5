/* A few tokens, or one of 16 bits, by the kernels of cuda/gemv_few.cuh. */
#include "cuda/gemv_few.cuh"

GEMV_FEW_KERNELS(sm120)
