/* gemm by sm100_gemm.cuh, a kernel for each tile. */
#include "sm100_gemm.cuh"

#define GEMM(name, CTAS, COLUMNS, PARTS, ACCUMULATORS, OF_TWO, PAIRS)                                         \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_CTA_THREADS(PAIRS), 1) sm100_gemm_##name(         \
        const __grid_constant__ cuda_tensor_map lanes, const __grid_constant__ cuda_tensor_map columns,       \
        const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm100_gemm_scheduler work)         \
    {                                                                                                         \
        run<config<1, OF_BATCHES, CTAS, COLUMNS, PARTS, ACCUMULATORS, PAIRS>>({{&lanes, &columns}}, p, work); \
    }

SM100_GEMM_TILES(GEMM)
