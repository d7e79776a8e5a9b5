/* combine with loads of 32 bytes, by the kernels of cuda/combine.cuh. */
#include "cuda/combine.cuh"

COMBINE_KERNELS(sm120, 32)
