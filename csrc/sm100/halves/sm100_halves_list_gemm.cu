/* grouped_gemm of a list of groups of NVFP4 weights and 16-bit tokens by sm100_halves.cuh, a kernel for each tile that
 * has all of K. */
#include "sm100_halves.cuh"

#define LIST_GEMM(name, CTAS, COLUMNS, PARTS, ACCUMULATORS, ...)                                                 \
    extern "C" __global__ void __launch_bounds__(SM100_HALVES_THREADS(true), 1)                                  \
        sm100_halves_list_gemm_##name(const __grid_constant__ sm100_list list)                                   \
    {                                                                                                            \
        const code_maps first = {{&list.group[0].lanes, &list.group[0].columns}};                                \
        run_halves<halves_config<true, 1, OF_LIST, CTAS, COLUMNS, PARTS, ACCUMULATORS>>(first, list, list.work); \
    }

SM100_HALVES_LIST_TILES(LIST_GEMM)
