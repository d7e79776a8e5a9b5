/* grouped_gemm of contiguous experts of NVFP4 weights and 16-bit tokens with an activation by sm100_kind_f16.cuh, a
 * kernel for each tile of one CTA without split K. */
#include "sm100_kind_f16.cuh"

#define KERNEL(name, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS, ...)                                                \
    extern "C" __global__ void __launch_bounds__(SM100_KIND_F16_THREADS(true), 1)                                 \
        sm100_kind_f16_activated_grouped_gemm_##name(                                                             \
            const __grid_constant__ cuda_tensor_map weights, const __grid_constant__ cuda_tensor_map tokens,      \
            const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm100_gemm_params params,          \
            const __grid_constant__ sm100_gemm_experts experts)                                                   \
    {                                                                                                             \
        run_kind_f16<activated<kind_f16_traits<true, 1, FROM_EXPERTS, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS>>>( \
            {{&weights, &tokens}}, p, params, experts);                                                           \
    }

SM100_KIND_F16_GROUPED_TILES(KERNEL)
