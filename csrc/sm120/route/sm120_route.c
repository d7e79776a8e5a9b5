/* route of fp32 numbers and of given logits. What tensor cores can multiply is left to sm80, whose mma.sync it is. */
#include "cuda/cuda_route_fma.h"
#include "cuda/cuda_route_sort.h"
#include "sm120/sm120_backend.h"

static const cuda_route_fma_kernels kernels = CUDA_ROUTE_FMA_KERNELS(sm120);

typedef struct sm120_route_choice {
    cuda_route_fma_choice fma;
    int64_t sorters; /* CTAs of the permutation */
    bool overlap;
} sm120_route_choice;

NK_CHOICE_FITS(sm120_route_choice);

nk_status sm120_plan_route(const nk_route_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    sm120_route_choice *r = choice;
    const cuda_gpu *gpu = NULL;
    if (!p->from_logits && nk_route_has_halves(p)) return nk_decline(plan, "x and w of 16 bits are for mma.sync");
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    r->sorters = cuda_sort_ctas(p->m * p->top_k, gpu->sms);
    r->overlap = settings->pdl != NK_PDL_OFF;
    return cuda_plan_route_fma(p, &kernels, gpu, settings, plan, &r->fma);
}

nk_status sm120_run_route(const nk_route_problem *p, const void *choice, const nk_exec *exec)
{
    const sm120_route_choice *r = choice;
    NK_TRY(cuda_run_route_fma(p, &r->fma, exec));
    return p->sorts ? cuda_route_sort(&sm120_sort_by_expert, p, r->sorters, r->overlap, exec) : NK_OK;
}
