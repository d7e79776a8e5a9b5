/* The permutation, where one is wanted: a launch of its own behind the router's.
 *
 * Work: a CTA sorts a range of (token, selection) by expert, see cuda/route_sort.cuh. It counts all others' entries
 * itself, so CTAs need not meet. */
#include "cuda/ptx/grid.cuh"
#include "cuda/route_sort.cuh"

extern "C" __global__ void __launch_bounds__(32 * ROUTE_SORT_WARPS, 1)
    sm90_route_sort(const __grid_constant__ nk_route_problem p)
{
    extern __shared__ __align__(16) uint8_t sort_memory[];
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    sort_range(p, *(sort_t *)sort_memory, blockIdx.x, gridDim.x);
}
