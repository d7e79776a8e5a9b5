/* dual_gemm: the same tiles; a tile of weights holds as many rows of b1 as of b2. */
#include "sm80_gemm_plan.h"

#define OUTPUTS_PER_WARP 16 /* of 32 weight rows: half are gates */
#define KERNEL(name, kind) &sm80_dual_gemm_##name##_##kind
#define ROW(name, ...) {KERNEL(name, nvfp4), KERNEL(name, fp16), KERNEL(name, bf16), KERNEL(name, reduce)},
static const sm80_gemm_kernels kernels[SM80_GEMM_TILE_COUNT] = {SM80_GEMM_TILES(ROW)};

NK_CHOICE_FITS(sm80_gemm_choice);

nk_status sm80_plan_dual_gemm(const nk_dual_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    sm80_product product = {p->device, p->l, p->m, p->n, p->k, sm80_gemm_kind(&p->a, &p->b1), OUTPUTS_PER_WARP};
    return sm80_gemm_plan(&product, settings, kernels, plan, choice);
}

nk_status sm80_run_dual_gemm(const nk_dual_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    return sm80_gemm_run(p->device, p, choice, exec);
}
