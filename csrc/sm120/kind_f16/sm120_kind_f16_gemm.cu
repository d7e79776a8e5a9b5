/* gemm of 16-bit tokens, see sm120/gemm/sm120_operators.cuh: a kernel for each tile. */
#include "sm120_kind_f16.cuh"
#include "sm120_kind_f16_split.cuh"

#define KERNEL(name, ...) SM120_KERNEL(sm120_kind_f16_gemm_##name, SPLIT_GEMM, kind_f16_traits, __VA_ARGS__)

SM120_KIND_F16_TILES(KERNEL)
