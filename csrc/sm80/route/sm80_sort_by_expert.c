/* sort_by_expert: chooses a grid and launches. */
#include "sm80/sm80_backend.h"

#include "cuda/cuda_route.h"
#include "cuda/cuda_route_sort.h"

typedef struct sort_choice {
    int64_t ctas;
    bool overlap;
} sort_choice;

NK_CHOICE_FITS(sort_choice);

nk_status sm80_plan_sort_by_expert(const nk_sort_by_expert_problem *p, const nk_settings *settings, nk_plan *plan,
                                   void *choice)
{
    sort_choice *c = choice;
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    c->ctas = cuda_sort_ctas(p->m * p->top_k, gpu->sms);
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
    return cuda_route_sort(&sm80_sort_by_expert, p, c->ctas, c->overlap, exec);
}
