/* The sm120 gemv family: its kernels and costs. Clusters have one CTA, so K is split among warps alone. */
#include "sm120_gemv.h"

#include "sm120_gemv_costs.h"

CUDA_GEMV_ROW(sm120, 1, sm120_gemv_costs)
