/* dual_gemm by sm100_gemm.cuh, a kernel for each tile whose two accumulators fit into tensor memory. */
#include "sm100_gemm.cuh"

#define DUAL_GEMM(name, CTA_GROUP, MMA_N, SPLIT_K, OF_ONE, ACCUMULATORS, PAIRS)                            \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_CTA_THREADS(PAIRS), 1) sm100_dual_gemm_##name( \
        const __grid_constant__ cuda_tensor_map gates, const __grid_constant__ cuda_tensor_map operand_n,  \
        const __grid_constant__ cuda_tensor_map ups, const __grid_constant__ nk_dual_gemm_problem p,       \
        const __grid_constant__ sm100_gemm_params params)                                                  \
    {                                                                                                      \
        run_mxf4nvf4<mxf4nvf4_traits<2, FROM_BATCHES, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS, PAIRS>>(    \
            {{&gates, &operand_n, &ups}}, p, params);                                                      \
    }

SM100_GEMM_DUAL_TILES(DUAL_GEMM)
