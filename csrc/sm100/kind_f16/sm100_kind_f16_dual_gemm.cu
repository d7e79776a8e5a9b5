/* dual_gemm of NVFP4 weights and 16-bit tokens by sm100_kind_f16.cuh, a kernel for each tile whose two accumulators fit
 * into tensor memory. */
#include "sm100_kind_f16.cuh"

#define DUAL_GEMM(name, CTA_GROUP, MMA_N, SPLIT_K, OF_ONE, ACCUMULATORS)                                           \
    extern "C" __global__ void __launch_bounds__(SM100_KIND_F16_THREADS(true), 1) sm100_kind_f16_dual_gemm_##name( \
        const __grid_constant__ cuda_tensor_map gates, const __grid_constant__ cuda_tensor_map tokens,             \
        const __grid_constant__ cuda_tensor_map ups, const __grid_constant__ nk_dual_gemm_problem p,               \
        const __grid_constant__ sm100_gemm_params params)                                                          \
    {                                                                                                              \
        run_kind_f16<kind_f16_traits<true, 2, FROM_BATCHES, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS>>(             \
            {{&gates, &tokens, &ups}}, p, params);                                                                 \
    }

SM100_KIND_F16_DUAL_TILES(DUAL_GEMM)
