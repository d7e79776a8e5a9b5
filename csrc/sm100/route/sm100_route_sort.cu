/* The permutation, where one is wanted: a launch of its own behind the router's. */
#include "cuda/route_sort_kernel.cuh"

ROUTE_SORT_KERNEL(sm100_route_sort)
