/* dual_gemm on Blackwell: tiles of gemm, or of sm100/kind_f16, which have 128 rows of either matrix for each CTA. */
#include "sm100/kind_f16/sm100_kind_f16.h"

#define KERNEL(name, ...) [SM100_GEMM_##name] = &sm100_dual_gemm_##name,
static cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT] = {SM100_GEMM_DUAL_TILES(KERNEL)};

static bool are_halves(const nk_dual_gemm_problem *p) { return p->a.dtype != NK_E2M1X2; }

/* The product with b1. */
static nk_gemm_problem gates_of(const nk_dual_gemm_problem *p)
{
    return (nk_gemm_problem){
        .device = p->device, .l = p->l, .m = p->m, .n = p->n, .k = p->k, .a = p->a, .b = p->b1, .d = p->d};
}

nk_status sm100_plan_dual_gemm(const nk_dual_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    const nk_gemm_problem gates = gates_of(p);
    const sm100_gemm_product product = {.first = &gates, .ups = &p->b2, .problem = p};
    if (are_halves(p)) return sm100_kind_f16_plan(&product, settings, plan, choice);
    return sm100_gemm_plan(&product, settings, kernels, plan, choice);
}

nk_status sm100_run_dual_gemm(const nk_dual_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const nk_gemm_problem gates = gates_of(p);
    const sm100_gemm_product product = {.first = &gates, .ups = &p->b2, .problem = p};
    if (are_halves(p)) return sm100_kind_f16_run(&product, choice, exec);
    return sm100_gemm_run(&product, choice, exec);
}
