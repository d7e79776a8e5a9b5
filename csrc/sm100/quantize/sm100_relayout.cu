/* The layout conversions of cuda/relayout.cuh: bytes are moved, so all rows have the same. */
#include "cuda/relayout.cuh"

RELAYOUT_KERNELS(sm100)
