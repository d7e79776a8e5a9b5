/* grouped_dual_gemm: tiles of grouped_gemm, of whose weight rows half are gates. */
#include "sm80_groups.h"

#define KERNEL(name, kind) &sm80_grouped_dual_gemm_##name##_##kind
#define ROW(name, ...)                                             \
    [SM80_GEMM_##name] = {[SM80_GEMM_NVFP4] = KERNEL(name, nvfp4), \
                          [SM80_GEMM_FP16] = KERNEL(name, fp16),   \
                          [SM80_GEMM_BF16] = KERNEL(name, bf16)},
static const sm80_group_kernels kernels[SM80_GEMM_TILE_COUNT] = {SM80_GATED_EXPERT_TILES(ROW)};
static const sm80_group_operator grouped_dual_gemm = {kernels, .outputs_per_warp = 16};

nk_status sm80_plan_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                                      void *choice)
{
    return sm80_groups_plan(&p->gates, &grouped_dual_gemm, settings, plan, choice);
}

nk_status sm80_run_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const sm80_gating gating = {p->alpha_ups, p->activation, p->encoded};
    return sm80_groups_run(&p->gates, &grouped_dual_gemm, &gating, choice, exec);
}
