/* The kernels of sm90_gemm.cuh for contiguous grouped_gemm: of each tile one for fp16 tokens (NVFP4 ones become fp16),
 * one for bf16. */
#include "sm90_gemm.cuh"

#define KERNEL(name, BFLOAT, ...)                                                                                  \
    extern "C" __global__ void __launch_bounds__(sm90_tile_config<GROUPED_GEMM, BFLOAT, __VA_ARGS__>::THREADS, 1)  \
        name(const __grid_constant__ cuda_tensor_map weights, const __grid_constant__ sm90_expert_maps maps,       \
             const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm90_gemm_params params,           \
             const __grid_constant__ sm90_gemm_experts experts)                                                    \
    {                                                                                                              \
        run_gemm<sm90_tile_config<GROUPED_GEMM, BFLOAT, __VA_ARGS__>>({weights, weights, maps.sf}, maps.tokens, p, \
                                                                      params, experts);                            \
    }
#define KERNELS(name, ...)                                      \
    KERNEL(sm90_grouped_gemm_##name##_fp16, false, __VA_ARGS__) \
    KERNEL(sm90_grouped_gemm_##name##_bf16, true, __VA_ARGS__)

SM90_GEMM_EXPERT_TILES(KERNELS)
