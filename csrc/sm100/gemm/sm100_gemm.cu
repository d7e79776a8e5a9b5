/* The kernels of sm100_gemm.cuh for gemm, dual_gemm and grouped_gemm, one a tile. */
#include "sm100_gemm.cuh"

#define GEMM(name, COLUMNS, STAGES, ACCUMULATORS, ...)                                                  \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_THREADS, 1) sm100_gemm_##name(              \
        const __grid_constant__ cuda_tensor_map lanes, const __grid_constant__ cuda_tensor_map columns, \
        const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm100_gemm_work work)        \
    {                                                                                                   \
        run<config<1, false, COLUMNS, STAGES, ACCUMULATORS>>({{&lanes, &columns}}, p, work);            \
    }

#define DUAL_GEMM(name, COLUMNS, STAGES_OF_ONE, ACCUMULATORS_OF_ONE, STAGES, ACCUMULATORS)              \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_THREADS, 1) sm100_dual_gemm_##name(         \
        const __grid_constant__ cuda_tensor_map gates, const __grid_constant__ cuda_tensor_map columns, \
        const __grid_constant__ cuda_tensor_map ups, const __grid_constant__ nk_dual_gemm_problem p,    \
        const __grid_constant__ sm100_gemm_work work)                                                   \
    {                                                                                                   \
        run<config<2, false, COLUMNS, STAGES, ACCUMULATORS>>({{&gates, &columns, &ups}}, p, work);      \
    }

#define GROUPED_GEMM(name, COLUMNS, STAGES, ACCUMULATORS, ...)                                          \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_THREADS, 1) sm100_grouped_gemm_##name(      \
        const __grid_constant__ cuda_tensor_map lanes, const __grid_constant__ cuda_tensor_map columns, \
        const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm100_gemm_work work,        \
        const __grid_constant__ sm100_gemm_experts experts)                                             \
    {                                                                                                   \
        run<config<1, true, COLUMNS, STAGES, ACCUMULATORS>>({{&lanes, &columns}}, p, work, experts);    \
    }

SM100_GEMM_TILES(GEMM)
SM100_GEMM_TILES(DUAL_GEMM)
SM100_GEMM_TILES(GROUPED_GEMM)
