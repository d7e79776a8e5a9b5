/* grouped_gemm of contiguous experts by sm100_gemm.cuh, a kernel for each tile that has all of K. */
#include "sm100_gemm.cuh"

#define GROUPED_GEMM(name, CTAS, COLUMNS, PARTS, ACCUMULATORS, ...)                                             \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_THREADS, 1) sm100_grouped_gemm_##name(              \
        const __grid_constant__ cuda_tensor_map lanes, const __grid_constant__ cuda_tensor_map columns,         \
        const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm100_gemm_scheduler work,           \
        const __grid_constant__ sm100_gemm_experts experts)                                                     \
    {                                                                                                           \
        run<config<1, OF_EXPERTS, CTAS, COLUMNS, PARTS, ACCUMULATORS>>({{&lanes, &columns}}, p, work, experts); \
    }

SM100_GEMM_GROUPED_TILES(GROUPED_GEMM)
