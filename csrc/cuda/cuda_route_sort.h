/* Launches the permutation of a router as a kernel of its own, see route_sort_kernel.cuh. */
#ifndef NK_CUDA_ROUTE_SORT_H
#define NK_CUDA_ROUTE_SORT_H

#include "cuda_launch.h"

/* About so many entries are a CTA's. */
nk_status cuda_route_sort(cuda_kernel *kernel, const nk_route_problem *p, int64_t entries_per_cta, bool overlap,
                          const nk_exec *exec);

#endif
