/* The kernels of sm90_gemm.cuh for contiguous grouped_gemm with an activation or an NVFP4 output, and else as
 * sm90_grouped_gemm.cu has them. They are others because an activation takes registers: with a branch for it w128 had
 * 160 in place of 129 without one. The two largest tiles of experts have none: a wheel shall stay small, and v112 has
 * no register left. */
#include "sm90_gemm.cuh"

#define KERNEL(name, ...)                                                                                    \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__::THREADS, 1)                                    \
        name(const __grid_constant__ cuda_tensor_map weights, const __grid_constant__ sm90_expert_maps maps, \
             const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm90_gemm_params params,     \
             const __grid_constant__ sm90_gemm_experts experts)                                              \
    {                                                                                                        \
        run_gemm<__VA_ARGS__>({weights, weights, maps.sf}, maps.tokens, p, params, experts);                 \
    }
#define CONFIG(BFLOAT, ...) activated<sm90_tile_config<GROUPED_GEMM, BFLOAT, __VA_ARGS__>>
#define KERNELS(name, ...)                                                        \
    KERNEL(sm90_activated_grouped_gemm_##name##_fp16, CONFIG(false, __VA_ARGS__)) \
    KERNEL(sm90_activated_grouped_gemm_##name##_bf16, CONFIG(true, __VA_ARGS__))

SM90_GEMM_COMMON_TILES(KERNELS)
