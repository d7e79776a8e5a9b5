/* grouped_dual_gemm by sm100_gemm.cuh, a kernel for each tile of dual_gemm without split K and multicast. */
#include "sm100_gemm.cuh"

#define GROUPED_DUAL_GEMM(name, CTA_GROUP, MMA_N, SPLIT_K, OF_ONE, ACCUMULATORS, ...)                         \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_THREADS, 1) sm100_grouped_dual_gemm_##name(       \
        const __grid_constant__ cuda_tensor_map gates, const __grid_constant__ cuda_tensor_map operand_n,     \
        const __grid_constant__ cuda_tensor_map ups, const __grid_constant__ nk_dual_gemm_problem p,          \
        const __grid_constant__ sm100_gemm_params params, const __grid_constant__ sm100_gemm_experts experts) \
    {                                                                                                         \
        run_mxf4nvf4<mxf4nvf4_traits<2, FROM_EXPERTS, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS>>(              \
            {{&gates, &operand_n, &ups}}, p, params, experts);                                                \
    }

SM100_GEMM_GROUPED_DUAL_TILES(GROUPED_DUAL_GEMM)
