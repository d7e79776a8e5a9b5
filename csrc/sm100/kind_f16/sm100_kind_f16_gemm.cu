/* gemm of NVFP4 weights and 16-bit tokens by sm100_kind_f16.cuh, a kernel for each tile. */
#include "sm100_kind_f16.cuh"

#define GEMM(name, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS, ...)                                              \
    extern "C" __global__ void __launch_bounds__(SM100_KIND_F16_THREADS(true), 1) sm100_kind_f16_gemm_##name( \
        const __grid_constant__ cuda_tensor_map weights, const __grid_constant__ cuda_tensor_map tokens,      \
        const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm100_gemm_params params)          \
    {                                                                                                         \
        run_kind_f16<kind_f16_traits<true, 1, FROM_BATCHES, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS>>(        \
            {{&weights, &tokens}}, p, params);                                                                \
    }

SM100_KIND_F16_TILES(GEMM)
