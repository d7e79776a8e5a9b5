/* The permutation as a kernel of its own, behind a kernel that wrote ids: a CTA sorts a range of (token, selection). */
#ifndef NK_ROUTE_SORT_KERNEL_CUH
#define NK_ROUTE_SORT_KERNEL_CUH

#include "cuda/ptx/grid.cuh"
#include "route_sort.cuh"

#define ROUTE_SORT_KERNEL(name)                                             \
    extern "C" __global__ void __launch_bounds__(32 * ROUTE_SORT_WARPS, 1)  \
        name(const __grid_constant__ nk_route_problem p)                    \
    {                                                                       \
        extern __shared__ __align__(16) uint8_t sort_memory[];              \
        griddepcontrol_launch_dependents();                                 \
        griddepcontrol_wait();                                              \
        sort_range(p, *(sort_t *)sort_memory, blockIdx.x, gridDim.x);       \
    }

#endif
