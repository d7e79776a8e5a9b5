/* dual_gemm of NVFP4 tokens, see sm120_operators.cuh: a kernel for each tile. */
#include "sm120_gemm.cuh"

#define KERNEL(name, ...) SM120_KERNEL(sm120_dual_gemm_##name, DUAL_GEMM, sm120_gemm_traits, __VA_ARGS__)

SM120_GEMM_TILES(KERNEL)
