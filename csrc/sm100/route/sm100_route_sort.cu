/* The permutation: a launch of its own behind a router's, and sort_by_expert. */
#include "cuda/route_sort_kernel.cuh"

ROUTE_SORT_KERNEL(sm100_route_sort)
