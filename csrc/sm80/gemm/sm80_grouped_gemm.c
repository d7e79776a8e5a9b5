/* grouped_gemm: its kernels. */
#include "sm80_groups.h"

#define KERNEL(name, kind) &sm80_grouped_gemm_##name##_##kind
#define ROW(name, ...)                                                       \
    {KERNEL(name, nvfp4),      KERNEL(name, fp16),       KERNEL(name, bf16), \
     KERNEL(name, plain_fp16), KERNEL(name, plain_bf16), KERNEL(name, reduce)},
static const sm80_group_kernels kernels[SM80_GEMM_TILE_COUNT] = {SM80_GEMM_TILES(ROW)};
static const sm80_group_operator grouped_gemm = {kernels, .outputs_per_warp = 32, .splits = true};

nk_status sm80_plan_grouped_gemm(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                                 void *choice)
{
    return sm80_groups_plan(p, &grouped_gemm, settings, plan, choice);
}

nk_status sm80_run_grouped_gemm(const nk_grouped_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    return sm80_groups_run(p, &grouped_gemm, NULL, choice, exec);
}
