/* quantize with Blackwell's conversion instructions, by the kernels of cuda/quantize_token.cuh. */
#include "cuda/quantize_conversions.cuh"

QUANTIZE_KERNELS(sm120, quantize_by_conversions)
