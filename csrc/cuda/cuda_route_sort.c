/* Launches a router's permutation: its CTAs count all entries each, so they need not meet. */
#include "cuda_route_sort.h"

#include "cuda_route.h"
#include "nk_format.h"

nk_status cuda_route_sort(cuda_kernel *kernel, const nk_route_problem *p, int64_t entries_per_cta, bool overlap,
                          const nk_exec *exec)
{
    const int64_t ctas = nk_ceil_div(p->m * p->top_k, entries_per_cta);
    const cuda_grid grid = {.x = ctas > 1 ? ctas : 1, /* without an entry one CTA writes the empty permutation */
                            .y = 1,
                            .z = 1,
                            .threads = 32 * ROUTE_SORT_WARPS,
                            .smem_bytes = sizeof(sort_t),
                            .overlap = overlap};
    return cuda_launch(kernel, p->device, exec->stream, &grid, (void *[]){(void *)(uintptr_t)p});
}
