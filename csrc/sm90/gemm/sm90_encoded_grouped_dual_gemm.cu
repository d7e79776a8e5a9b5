/* The kernels of sm90_gemm.cuh for grouped_dual_gemm with an NVFP4 output and another activation than silu, or a limit.
 * They are others, and of the tiles of sm90_activated_grouped_gemm.cu alone, because an activation takes registers:
 * what encodes silu shall have no register and no instruction more. */
#include "sm90_gemm.cuh"

#define KERNEL(name, ...)                                                                                        \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__::THREADS, 1)                                        \
        name(const __grid_constant__ cuda_tensor_map gates, const __grid_constant__ cuda_tensor_map ups,         \
             const __grid_constant__ sm90_expert_maps maps, const __grid_constant__ gemm_gated p,                \
             const __grid_constant__ sm90_gemm_params params, const __grid_constant__ sm90_gemm_experts experts) \
    {                                                                                                            \
        run_gemm<__VA_ARGS__>({gates, ups, maps.sf}, maps.tokens, p, params, experts);                           \
    }
#define CONFIG(BFLOAT, ...) activated<sm90_tile_config<GROUPED_DUAL_GEMM, BFLOAT, __VA_ARGS__>>
#define KERNELS(name, ...)                                                           \
    KERNEL(sm90_encoded_grouped_dual_gemm_##name##_fp16, CONFIG(false, __VA_ARGS__)) \
    KERNEL(sm90_encoded_grouped_dual_gemm_##name##_bf16, CONFIG(true, __VA_ARGS__))

SM90_GEMM_COMMON_TILES(KERNELS)
