/* The layout conversions of cuda/relayout.cuh, which move bytes: all rows have the same. */
#include "cuda/relayout.cuh"

RELAYOUT_KERNELS(sm120)
