#include "sm80_gemm_plan.h"

#define OUTPUTS_PER_WARP 32
#define KERNEL(name, kind) &sm80_gemm_##name##_##kind
#define ROW(name, ...) {KERNEL(name, codes), KERNEL(name, halves), KERNEL(name, bfloats), KERNEL(name, reduce)},
static const sm80_gemm_kernels kernels[SM80_GEMM_TILE_COUNT] = {SM80_GEMM_TILES(ROW)};

static sm80_product product_of(const nk_gemm_problem *p)
{
    return (sm80_product){p->l, p->m, p->n, p->k, sm80_gemm_kind(&p->a, &p->b), OUTPUTS_PER_WARP};
}

/* The gemv's order of summation is another one. */
static bool is_gemv(const nk_gemm_problem *p) { return p->m == 1 && !nk_settings_of_call()->batch_invariant; }

nk_status sm80_plan_gemm(const nk_gemm_problem *p, nk_plan *plan)
{
    if (is_gemv(p)) return sm80_plan_gemv(p, plan);
    sm80_product product = product_of(p);
    return sm80_gemm_plan(p->device, &product, kernels, plan);
}

nk_status sm80_run_gemm(const nk_gemm_problem *p, const nk_exec *exec)
{
    if (is_gemv(p)) return sm80_run_gemv(p, exec);
    sm80_product product = product_of(p);
    return sm80_gemm_run(p->device, &product, kernels, p, exec);
}
