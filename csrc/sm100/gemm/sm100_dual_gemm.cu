/* dual_gemm by sm100_gemm.cuh, a kernel for each tile that has room for the sums of two matrices. */
#include "sm100_gemm.cuh"

#define DUAL_GEMM(name, CTAS, COLUMNS, PARTS, OF_ONE, ACCUMULATORS, PAIRS)                                          \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_CTA_THREADS(PAIRS), 1) sm100_dual_gemm_##name(          \
        const __grid_constant__ cuda_tensor_map gates, const __grid_constant__ cuda_tensor_map columns,             \
        const __grid_constant__ cuda_tensor_map ups, const __grid_constant__ nk_dual_gemm_problem p,                \
        const __grid_constant__ sm100_gemm_scheduler work)                                                          \
    {                                                                                                               \
        run<config<2, OF_BATCHES, CTAS, COLUMNS, PARTS, ACCUMULATORS, PAIRS>>({{&gates, &columns, &ups}}, p, work); \
    }

SM100_GEMM_DUAL_TILES(DUAL_GEMM)
