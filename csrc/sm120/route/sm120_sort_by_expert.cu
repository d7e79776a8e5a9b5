/* sort_by_expert, by the kernel of cuda/route_sort_kernel.cuh. */
#include "cuda/route_sort_kernel.cuh"

ROUTE_SORT_KERNEL(sm120_sort_by_expert)
