/* combine by loads of 32 bytes. The kernels are those of cuda/combine.cuh. */
#include "cuda/combine.cuh"

COMBINE_KERNELS(sm100, 32)
