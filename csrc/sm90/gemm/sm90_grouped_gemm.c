/* grouped_gemm on Hopper, contiguous: the tiles of gemm, each with tokens of one expert. */
#include "sm90_gemm_plan.h"

#define KERNELS(name, ...) \
    [SM90_GEMM_##name] = {&sm90_grouped_gemm_##name##_halves, &sm90_grouped_gemm_##name##_bfloats},
static const sm90_gemm_kernels kernels[SM90_GEMM_TILE_COUNT] = {SM90_GEMM_WHOLE_TILES(KERNELS)};

NK_CHOICE_FITS(sm90_gemm_choice);

static sm90_gemm_product product_of(const nk_grouped_gemm_problem *p)
{
    return (sm90_gemm_product){.first = &p->all,
                               .problem = &p->all,
                               .offsets = p->offsets,
                               .experts = p->groups,
                               .token_sf_bytes = p->a_sf_bytes,
                               .rows = p->rows};
}

static const char *why_not(const nk_grouped_gemm_problem *p, const nk_settings *settings)
{
    if (p->list) return "sm90/gemm serves no lists of groups";
    if (p->all.b.dtype != NK_E2M1X2) return "the weights of sm90/gemm are NVFP4";
    if (p->groups == 0) return "there are no experts";
    /* Else whether sm80 serves a call, which adds in another order, would depend on how many rows there are. */
    if (settings->batch_invariant) return "NVFP4KERN_BATCH_INVARIANT=1, and many tokens' workspace would be too large";
    return NULL;
}

nk_status sm90_plan_grouped_gemm(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                                 void *choice)
{
    const int forced = nk_tile_forced(settings, &sm90_gemm_family);
    const char *why = why_not(p, settings);
    if (why && forced == NK_TILE_ANY) return nk_decline(plan, why);
    if (why) return NK_TILE_REFUSE(&sm90_gemm_family, forced, "%s", why);
    const sm90_gemm_product product = product_of(p);
    if (forced != NK_TILE_ANY) return sm90_gemm_plan(&product, settings, kernels, forced, plan, choice);
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const sm90_gemm_pick pick = sm90_gemm_pick_of(&product, gpu, settings->batch_invariant);
    return sm90_gemm_plan_picked(&product, settings, kernels, &pick, plan, choice);
}

nk_status sm90_run_grouped_gemm(const nk_grouped_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const sm90_gemm_product product = product_of(p);
    return sm90_gemm_run(&product, choice, exec);
}
