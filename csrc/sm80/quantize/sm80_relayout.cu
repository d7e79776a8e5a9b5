/* The layout conversions of cuda/relayout.cuh. */
#include "cuda/relayout.cuh"

RELAYOUT_KERNELS(sm80)
