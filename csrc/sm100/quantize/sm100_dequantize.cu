/* dequantize with Blackwell's conversion instructions, by the kernels of cuda/dequantize.cuh. */
#include "cuda/dequantize_conversions.cuh"

DEQUANTIZE_KERNELS(sm100, dequantize_by_conversions)
