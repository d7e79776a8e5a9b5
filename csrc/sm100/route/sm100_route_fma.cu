/* route without tensor cores, by the kernels of cuda/route_fma_kernels.cuh. */
#include "cuda/route_fma_kernels.cuh"

#define MULTIPLY(name, ...) ROUTE_FMA_MULTIPLY(sm100_route_##name, __VA_ARGS__)

ROUTE_FMA_TILES(MULTIPLY)
ROUTE_FMA_SELECTS(sm100)
