/* grouped_gemm of contiguous experts with an activation by sm100_gemm.cuh, as sm100_grouped_gemm.cu has it. The kernels
 * are others because an activation takes registers and instructions. */
#include "sm100_gemm.cuh"

#define ACTIVATED_GROUPED_GEMM(name, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS, ...)                            \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_THREADS, 1) sm100_activated_grouped_gemm_##name(  \
        const __grid_constant__ cuda_tensor_map operand_m, const __grid_constant__ cuda_tensor_map operand_n, \
        const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm100_gemm_params params,          \
        const __grid_constant__ sm100_gemm_experts experts)                                                   \
    {                                                                                                         \
        run_mxf4nvf4<activated<mxf4nvf4_traits<1, FROM_EXPERTS, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS>>>(   \
            {{&operand_m, &operand_n}}, p, params, experts);                                                  \
    }

SM100_GEMM_ACTIVATED_TILES(ACTIVATED_GROUPED_GEMM)
