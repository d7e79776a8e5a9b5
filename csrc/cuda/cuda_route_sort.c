/* Launches a router's permutation: its CTAs count all entries each, so they need not meet. */
#include "cuda_route_sort.h"

#include "cuda_route.h"
#include "nk_format.h"

#define SORT_ENTRIES 1024 /* that a CTA places, about, while there are SMs */

int64_t cuda_sort_ctas(int64_t entries, int32_t sms)
{
    const int64_t parts = nk_ceil_div(entries, SORT_ENTRIES);
    return parts < 1 ? 1 : parts > sms ? sms : parts; /* without an entry one CTA writes the empty permutation */
}

nk_status cuda_route_sort(cuda_kernel *kernel, const nk_route_problem *p, int64_t ctas, bool overlap,
                          const nk_exec *exec)
{
    const cuda_grid grid = {.x = ctas,
                            .y = 1,
                            .z = 1,
                            .threads = 32 * ROUTE_SORT_WARPS,
                            .smem_bytes = sizeof(sort_t),
                            .overlap = overlap};
    return cuda_launch(kernel, p->device, exec->stream, &grid, (void *[]){(void *)(uintptr_t)p});
}
