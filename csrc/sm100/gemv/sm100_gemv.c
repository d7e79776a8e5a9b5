/* The sm100 gemv family: its kernels and costs. */
#include "sm100_gemv.h"

#include "sm100_gemv_costs.h"

CUDA_GEMV_ROW(sm100, GEMV_MAX_CLUSTER, sm100_gemv_costs)
