/* grouped_gemm of a list of groups by sm100_gemm.cuh, a kernel for each tile that has all of K. */
#include "sm100_gemm.cuh"

#define LIST_GEMM(name, CTAS, COLUMNS, PARTS, ACCUMULATORS, ...)                                  \
    extern "C" __global__ void __launch_bounds__(SM100_GEMM_THREADS, 1)                           \
        sm100_list_gemm_##name(const __grid_constant__ sm100_list_params list)                    \
    {                                                                                             \
        const code_maps first = {{&list.group[0].map_m, &list.group[0].map_n}};                   \
        run<config<1, OF_LIST, CTAS, COLUMNS, PARTS, ACCUMULATORS>>(first, list, list.scheduler); \
    }

SM100_GEMM_GROUPED_TILES(LIST_GEMM)
