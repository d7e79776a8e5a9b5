/* route's permutation of given ids, alone.
 *
 * Work: a CTA sorts a range of (token, selection) by expert, see cuda/route_sort.cuh. It counts all others' entries
 * itself, so CTAs need not meet. */
#include "cuda/ptx/grid.cuh"
#include "cuda/route_sort.cuh"

extern "C" __global__ void __launch_bounds__(32 * ROUTE_SORT_WARPS, 1)
    sm80_sort_by_expert(const __grid_constant__ nk_sort_by_expert_problem p)
{
    extern __shared__ __align__(16) uint8_t sort_memory[];
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    sort_range(p, *(sort_t *)sort_memory, blockIdx.x, gridDim.x);
}
