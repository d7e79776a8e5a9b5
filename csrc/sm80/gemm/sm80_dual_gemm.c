#include "sm80_gemm_plan.h"

#define OUTPUTS_PER_WARP 16 /* of 32 weight rows: half are gates */
#define KERNEL(name, kind) &sm80_dual_gemm_##name##_##kind
#define ROW(name, ...) {KERNEL(name, codes), KERNEL(name, halves), KERNEL(name, bfloats), KERNEL(name, reduce)},
static const sm80_gemm_kernels kernels[SM80_GEMM_TILE_COUNT] = {SM80_GEMM_TILES(ROW)};

static sm80_product product_of(const nk_dual_gemm_problem *p)
{
    return (sm80_product){p->l, p->m, p->n, p->k, sm80_gemm_kind(&p->a, &p->b1), OUTPUTS_PER_WARP};
}

nk_status sm80_plan_dual_gemm(const nk_dual_gemm_problem *p, nk_plan *plan)
{
    sm80_product product = product_of(p);
    return sm80_gemm_plan(p->device, &product, kernels, plan);
}

nk_status sm80_run_dual_gemm(const nk_dual_gemm_problem *p, const nk_exec *exec)
{
    sm80_product product = product_of(p);
    return sm80_gemm_run(p->device, &product, kernels, p, exec);
}
