/* One NVFP4 token, by the kernels of cuda/gemv_codes.cuh. */
#include "cuda/gemv_codes.cuh"

GEMV_CODES_KERNELS(sm120)
