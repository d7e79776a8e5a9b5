/* grouped_gemm of a list of groups of NVFP4 weights and 16-bit tokens by sm100_kind_f16.cuh, a kernel for each tile
 * without split K. */
#include "sm100_kind_f16.cuh"

#define LIST_GEMM(name, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS, ...)                                            \
    extern "C" __global__ void __launch_bounds__(SM100_KIND_F16_THREADS(true), 1)                                \
        sm100_kind_f16_list_gemm_##name(const __grid_constant__ sm100_list_params list)                          \
    {                                                                                                            \
        const code_maps first = {{&list.group[0].map_m, &list.group[0].map_n}};                                  \
        run_kind_f16<kind_f16_traits<true, 1, FROM_LIST, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS>>(first, list,  \
                                                                                                   list.params); \
    }

SM100_KIND_F16_LIST_TILES(LIST_GEMM)
