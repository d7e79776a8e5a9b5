/* Launches a router's permutation: its CTAs count all entries each, so they need not meet. */
#include "cuda_route_sort.h"

#include "cuda_gpu.h"
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

typedef struct sort_choice {
    cuda_kernel *kernel;
    int64_t ctas;
    bool overlap;
} sort_choice;

NK_CHOICE_FITS(sort_choice);

nk_status cuda_plan_sort_by_expert(const nk_sort_by_expert_problem *p, const cuda_sort_by_expert_kernels *kernels,
                                   const nk_settings *settings, nk_plan *plan, void *choice)
{
    sort_choice *c = choice;
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    *c = (sort_choice){kernels->sorts, cuda_sort_ctas(p->m * p->top_k, gpu->sms), settings->pdl != NK_PDL_OFF};
    plan->kernel = c->kernel->name;
    plan->why = "a counting sort; CTAs need not meet, since each counts all entries";
    plan->grid = c->ctas;
    plan->threads = 32 * ROUTE_SORT_WARPS;
    plan->batch_invariant = true;
    return NK_OK;
}

nk_status cuda_run_sort_by_expert(const nk_sort_by_expert_problem *p, const void *choice, const nk_exec *exec)
{
    const sort_choice *c = choice;
    return cuda_route_sort(c->kernel, p, c->ctas, c->overlap, exec);
}
