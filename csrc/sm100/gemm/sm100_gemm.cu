/* gemm by sm100_gemm.cuh, a kernel for each tile. */
#include "sm100_gemm.cuh"

#define GEMM(name, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS, OF_DUAL, PAIRS)                                   \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_CTA_THREADS(PAIRS), 1) sm100_gemm_##name(         \
        const __grid_constant__ cuda_tensor_map operand_m, const __grid_constant__ cuda_tensor_map operand_n, \
        const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm100_gemm_params params)          \
    {                                                                                                         \
        run_mxf4nvf4<mxf4nvf4_traits<1, FROM_BATCHES, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS, PAIRS>>(       \
            {{&operand_m, &operand_n}}, p, params);                                                           \
    }

SM100_GEMM_TILES(GEMM)
