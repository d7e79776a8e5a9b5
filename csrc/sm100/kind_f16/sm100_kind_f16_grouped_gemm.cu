/* grouped_gemm of contiguous experts with 16-bit tokens by sm100_kind_f16.cuh, kernels for each tile that has all of K:
 * of NVFP4 weights, and of 16-bit ones. */
#include "sm100_kind_f16.cuh"

#define KERNEL(NAME, DECODES, CTAS, COLUMNS, PARTS, ACCUMULATORS, ...)                                               \
    extern "C" __global__ void __launch_bounds__(SM100_KIND_F16_THREADS(DECODES), 1)                                 \
        NAME(const __grid_constant__ cuda_tensor_map weights, const __grid_constant__ cuda_tensor_map tokens,        \
             const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm100_gemm_scheduler work,           \
             const __grid_constant__ sm100_gemm_experts experts)                                                     \
    {                                                                                                                \
        run_halves<halves_config<DECODES, 1, OF_EXPERTS, CTAS, COLUMNS, PARTS, ACCUMULATORS>>({{&weights, &tokens}}, \
                                                                                              p, work, experts);     \
    }
#define OF_CODES(name, ...) KERNEL(sm100_kind_f16_grouped_gemm_##name, true, __VA_ARGS__)
#define OF_HALVES(name, ...) KERNEL(sm100_kind_f16_grouped_gemm_16bit_##name, false, __VA_ARGS__)

SM100_KIND_F16_GROUPED_TILES(OF_CODES)
SM100_KIND_F16_GROUPED_TILES(OF_HALVES)
