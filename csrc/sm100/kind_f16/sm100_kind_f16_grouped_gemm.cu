/* grouped_gemm of contiguous experts with 16-bit tokens by sm100_kind_f16.cuh, kernels for each tile of one CTA without
 * split K: of NVFP4 weights, and of 16-bit ones. */
#include "sm100_kind_f16.cuh"

#define KERNEL(NAME, DECODES, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS, ...)                                   \
    extern "C" __global__ void __launch_bounds__(SM100_KIND_F16_THREADS(DECODES), 1)                          \
        NAME(const __grid_constant__ cuda_tensor_map weights, const __grid_constant__ cuda_tensor_map tokens, \
             const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm100_gemm_params params,     \
             const __grid_constant__ sm100_gemm_experts experts)                                              \
    {                                                                                                         \
        run_kind_f16<kind_f16_traits<DECODES, 1, FROM_EXPERTS, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS>>(     \
            {{&weights, &tokens}}, p, params, experts);                                                       \
    }
#define OF_NVFP4(name, ...) KERNEL(sm100_kind_f16_grouped_gemm_##name, true, __VA_ARGS__)
#define OF_16BIT(name, ...) KERNEL(sm100_kind_f16_grouped_gemm_16bit_##name, false, __VA_ARGS__)

SM100_KIND_F16_GROUPED_TILES(OF_NVFP4)
SM100_KIND_F16_GROUPED_TILES(OF_16BIT)
