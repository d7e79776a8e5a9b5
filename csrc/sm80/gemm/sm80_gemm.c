#include "sm80_gemm_plan.h"

extern cuda_image cuda_image_sm80_gemm;

#define OUTPUTS_PER_WARP 32
#define KERNEL(text) {.name = "sm80_gemm_" text, .image = &cuda_image_sm80_gemm}
#define ROW(name, tokens, warps, stages, ctas) \
    {KERNEL(#name "_codes"), KERNEL(#name "_halves"), KERNEL(#name "_bfloats"), KERNEL(#name "_reduce")},
static sm80_gemm_kernels kernels[SM80_GEMM_TILE_COUNT] = {SM80_GEMM_TILES(ROW)};

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
