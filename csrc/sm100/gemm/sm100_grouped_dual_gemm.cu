/* grouped_dual_gemm by sm100_gemm.cuh, a kernel for each tile that has all of K and room for the sums of two matrices.
 */
#include "sm100_gemm.cuh"

#define GROUPED_DUAL_GEMM(name, CTAS, COLUMNS, PARTS, ACCUMULATORS_OF_ONE, ACCUMULATORS, ...)                         \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_THREADS, 1) sm100_grouped_dual_gemm_##name(               \
        const __grid_constant__ cuda_tensor_map gates, const __grid_constant__ cuda_tensor_map columns,               \
        const __grid_constant__ cuda_tensor_map ups, const __grid_constant__ nk_dual_gemm_problem p,                  \
        const __grid_constant__ sm100_gemm_scheduler work, const __grid_constant__ sm100_gemm_experts experts)        \
    {                                                                                                                 \
        run<config<2, OF_EXPERTS, CTAS, COLUMNS, PARTS, ACCUMULATORS>>({{&gates, &columns, &ups}}, p, work, experts); \
    }

SM100_GEMM_GROUPED_DUAL_TILES(GROUPED_DUAL_GEMM)
