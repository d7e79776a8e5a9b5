/* sort_by_expert: chooses a grid and launches. */
#include "sm80/sm80_backend.h"

#include "cuda/cuda_route.h"
#include "nk_format.h"

#define ENTRIES_PER_CTA 1024 /* about: each CTA counts all entries */

typedef struct sort_choice {
    int64_t ctas;
    bool overlap;
} sort_choice;

NK_CHOICE_FITS(sort_choice);

nk_status sm80_plan_sort_by_expert(const nk_sort_by_expert_problem *p, const nk_settings *settings, nk_plan *plan,
                                   void *choice)
{
    sort_choice *c = choice;
    const int64_t parts = nk_ceil_div(p->m * p->top_k, ENTRIES_PER_CTA);
    c->ctas = parts > 1 ? parts : 1; /* without an entry one CTA writes the empty permutation */
    c->overlap = settings->pdl != NK_PDL_OFF;
    plan->kernel = sm80_sort_by_expert.name;
    plan->why = "a counting sort; CTAs need not meet, since each counts all entries";
    plan->grid = c->ctas;
    plan->threads = 32 * ROUTE_SORT_WARPS;
    plan->batch_invariant = true;
    return NK_OK;
}

nk_status sm80_run_sort_by_expert(const nk_sort_by_expert_problem *p, const void *choice, const nk_exec *exec)
{
    const sort_choice *c = choice;
    const cuda_grid grid = {.x = c->ctas,
                            .y = 1,
                            .z = 1,
                            .threads = 32 * ROUTE_SORT_WARPS,
                            .smem_bytes = sizeof(sort_t),
                            .overlap = c->overlap};
    return cuda_launch(&sm80_sort_by_expert, p->device, exec->stream, &grid, (void *[]){(void *)(uintptr_t)p});
}
