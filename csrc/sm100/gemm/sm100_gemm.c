/* gemm on Blackwell: plan and run. Tiles of sm100/halves have 16-bit tokens. One token is left to the gemv of a later
 * row, if it may be. */
#include "sm100/halves/sm100_halves.h"

#define KERNEL(name, ...) [SM100_GEMM_##name] = &sm100_gemm_##name,
static cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT] = {SM100_GEMM_TILES(KERNEL)};

NK_CHOICE_FITS(sm100_gemm_choice);

static bool are_halves(const nk_gemm_problem *p) { return p->a.dtype != NK_E2M1X2; }

nk_status sm100_plan_gemm(const nk_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    const sm100_gemm_product product = {.first = p, .problem = p};
    const nk_family *family = are_halves(p) ? &sm100_halves_family : &sm100_gemm_family;
    const bool is_free = !settings->batch_invariant && nk_tile_forced(settings, family) == NK_TILE_ANY;
    if (p->m == 1 && is_free) return nk_decline(plan, "one token is a gemv");
    if (are_halves(p)) return sm100_halves_plan(&product, settings, plan, choice);
    return sm100_gemm_plan(&product, settings, kernels, plan, choice);
}

nk_status sm100_run_gemm(const nk_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const sm100_gemm_product product = {.first = p, .problem = p};
    if (are_halves(p)) return sm100_halves_run(&product, choice, exec);
    return sm100_gemm_run(&product, choice, exec);
}
