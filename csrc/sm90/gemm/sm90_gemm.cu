/* The kernels of sm90_gemm.cuh for gemm: of each tile one for fp16 tokens (NVFP4 ones become fp16), one for bf16. */
#include "sm90_gemm.cuh"

#define KERNEL(name, ...)                                                                                     \
    extern "C" __global__ void __launch_bounds__(sm90_tile_config<__VA_ARGS__>::THREADS, 1)                   \
        name(const __grid_constant__ cuda_tensor_map weights, const __grid_constant__ cuda_tensor_map tokens, \
             const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm90_gemm_params params)      \
    {                                                                                                         \
        run_gemm<sm90_tile_config<__VA_ARGS__>>({weights, weights, nullptr}, &tokens, p, params);             \
    }
#define KERNELS(name, OPERATOR, ...)                              \
    KERNEL(sm90_gemm_##name##_fp16, OPERATOR, false, __VA_ARGS__) \
    KERNEL(sm90_gemm_##name##_bf16, OPERATOR, true, __VA_ARGS__)
#define OF_GEMM(name, ...) KERNELS(name, GEMM, __VA_ARGS__)
#define OF_NATURAL_K(name, ...) KERNELS(name, NATURAL_K_GEMM, __VA_ARGS__)

SM90_GEMM_ONE_GEMM_TILES(OF_GEMM)
SM90_GEMM_NATURAL_K_TILES(OF_NATURAL_K)
