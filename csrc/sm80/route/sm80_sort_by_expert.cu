/* route's permutation of given ids, alone. */
#include "cuda/route_sort_kernel.cuh"

ROUTE_SORT_KERNEL(sm80_sort_by_expert)
