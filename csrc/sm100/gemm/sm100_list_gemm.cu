/* grouped_gemm of a list of groups by sm100_gemm.cuh, a kernel for each tile without split K and multicast. */
#include "sm100_gemm.cuh"

#define LIST_GEMM(name, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS, ...)                                      \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_THREADS, 1)                                    \
        sm100_list_gemm_##name(const __grid_constant__ sm100_list_params list)                             \
    {                                                                                                      \
        const code_maps first = {{&list.group[0].map_m, &list.group[0].map_n}};                            \
        run_mxf4nvf4<mxf4nvf4_traits<1, FROM_LIST, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS>>(first, list,  \
                                                                                             list.params); \
    }

SM100_GEMM_GROUPED_TILES(LIST_GEMM)
