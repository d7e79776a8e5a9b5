/* The permutation, if wanted: a launch of its own after the router's. */
#include "cuda/route_sort_kernel.cuh"

ROUTE_SORT_KERNEL(sm90_route_sort)
