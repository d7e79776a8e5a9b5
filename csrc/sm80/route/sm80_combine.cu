/* combine by loads of 16 bytes. The kernels are those of cuda/combine.cuh. */
#include "cuda/combine.cuh"

COMBINE_KERNELS(sm80, 16)
