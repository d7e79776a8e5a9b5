/* dual_gemm on Hopper: the same tiles, which hold as many rows of b1 as of b2, and run where one is forced. */
#include "sm90_gemm_plan.h"

#define KERNELS(name, ...) [SM90_GEMM_##name] = {&sm90_dual_gemm_##name##_halves, &sm90_dual_gemm_##name##_bfloats},
static const sm90_gemm_kernels kernels[SM90_GEMM_TILE_COUNT] = {SM90_GEMM_TILES(KERNELS)};

NK_CHOICE_FITS(sm90_gemm_choice);

/* The product with b1. */
static nk_gemm_problem gates_of(const nk_dual_gemm_problem *p)
{
    return (nk_gemm_problem){
        .device = p->device, .l = p->l, .m = p->m, .n = p->n, .k = p->k, .a = p->a, .b = p->b1, .d = p->d};
}

nk_status sm90_plan_dual_gemm(const nk_dual_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    const int forced = nk_tile_forced(settings, &sm90_gemm_family);
    if (forced == NK_TILE_ANY) return NK_DECLINED;
    const nk_gemm_problem gates = gates_of(p);
    const sm90_gemm_product product = {.first = &gates, .ups = &p->b2, .problem = p};
    return sm90_gemm_plan(&product, settings, kernels, forced, plan, choice);
}

nk_status sm90_run_dual_gemm(const nk_dual_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const nk_gemm_problem gates = gates_of(p);
    const sm90_gemm_product product = {.first = &gates, .ups = &p->b2, .problem = p};
    return sm90_gemm_run(&product, choice, exec);
}
