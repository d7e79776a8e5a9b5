/* dequantize with Blackwell's conversion instructions, by the kernels of cuda/dequantize.cuh. */
#include "cuda/dequantize_conversions.cuh"

DEQUANTIZE_KERNELS(sm120, dequantize_by_conversions)
