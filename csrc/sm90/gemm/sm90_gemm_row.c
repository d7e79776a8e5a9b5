/* The sm90 row's GEMM operators: tiles of sm90/gemm, of 16-bit weights those of sm90/kind_f16, or for few tokens the
 * gemv. */
#include "sm90/gemv/sm90_gemv_scheduler.h"
#include "sm90_gemm_family.h"

static bool sm90_row_is_kind_f16(const gemm_desc *d) { return d->op == GEMM_GROUPED && d->gemm->b.dtype != NK_E2M1X2; }

static const gemm_family *sm90_row_family_of(const gemm_desc *d)
{
    return sm90_row_is_kind_f16(d) ? &sm90_kind_f16 : &sm90_gemm;
}

static bool sm90_row_is_forced(const nk_settings *settings, const nk_family *family)
{
    return nk_tile_forced(settings, family) != NK_TILE_ANY;
}

/* Batch invariance: the sm80 row, which adds in another order, takes experts and lists that this row declines for their
 * number of rows. A row's bits would then depend on how many others there are, so this row declines them all. */
static const char *sm90_row_why_not(const gemm_desc *d, const nk_settings *settings)
{
    const nk_gemm_problem *p = d->gemm;
    if (d->op == GEMM || d->op == GEMM_DUAL) return NULL;
    if (d->experts && gemm_experts(d) == 0) return "there are no experts";
    if (d->op == GEMM_GROUPED_DUAL && p->k == 0) return GEMM_K_IS_0;
    if (d->list && d->activation) return GEMM_NO_ACTIVATED_LISTS;
    for (int64_t g = 0; d->list && g < d->list->groups; g++)
        if (d->list->list[g].b.dtype != NK_E2M1X2) return GEMM_NOT_NVFP4("weights");
    if (settings->batch_invariant && !sm90_row_is_forced(settings, sm90_row_family_of(d)->tiles))
        return "NVFP4KERN_BATCH_INVARIANT=1, which it keeps for some numbers of rows only";
    return NULL;
}

/* The gemv's time is compared with the tiles' after SM90_GEMM_GEMV_US is added. */
static nk_status sm90_row_plan_gemv(const gemm_desc *d, const nk_settings *settings, nk_plan *plan, void *choice,
                                    double *us)
{
    sm90_gemv_choice *c = choice;
    nk_status status = NK_DECLINED;
    if (sm90_row_is_kind_f16(d) || sm90_row_is_forced(settings, &sm90_gemm_family)) return NK_DECLINED;
    if (d->activation) return NK_DECLINED; /* its kernels would be as many again: half of a percent of the wheel each */
    if (d->op == GEMM && d->gemm->m <= SM90_GEMV_MAX_TOKENS) status = sm90_plan_gemv(d->gemm, settings, plan, c);
    if (d->op == GEMM_DUAL) status = sm90_plan_gemv_dual(d, settings, plan, c);
    if (d->experts) status = sm90_plan_gemv_experts(d, settings, plan, c);
    if (status != NK_OK) return status;
    *us = sm90_row_is_forced(settings, &sm90_gemv_family) ? 0 : c->schedule.us + SM90_GEMM_GEMV_US;
    return NK_OK;
}

static nk_status sm90_row_run_gemv(const gemm_desc *d, const void *choice, const nk_exec *exec)
{
    if (d->op == GEMM_DUAL) return sm90_run_gemv_dual(d, choice, exec);
    if (d->experts) return sm90_run_gemv_experts(d, choice, exec);
    return sm90_run_gemv(d->gemm, choice, exec);
}

static const gemm_row sm90_gemm_row = {.family = sm90_row_family_of,
                                       .why_not = sm90_row_why_not,
                                       .plan_gemv = sm90_row_plan_gemv,
                                       .run_gemv = sm90_row_run_gemv,
                                       .plan_list = sm90_plan_list,
                                       .run_list = sm90_run_list};
GEMM_CELLS(sm90)
