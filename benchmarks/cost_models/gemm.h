/* The cost model of a GEMM family, by the family's own table: FAMILY is what of it a model needs. split: K steps of a
 * CTA, or what K is divided among. */
#include "gemm/gemm_desc.c"
#include "gemm/gemm_plan.c"

static const gemm_family family = FAMILY;

static nk_gemm_problem gemm_of(const model_problem *p)
{
    return (nk_gemm_problem){.l = 1,
                             .m = p->m,
                             .n = p->n,
                             .k = p->k,
                             .a.dtype = p->wide ? NK_F16 : NK_E2M1X2,
                             .a.row_stride = p->wide ? 2 * p->k : p->k / 2,
                             .b.dtype = NK_E2M1X2,
                             .b.sf_layout = p->blocked ? NK_SF_BLOCKED : NK_SF_LINEAR};
}

static model_choice shown(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    const gemm_config *t = &family.configs[c->config];
    gemm_launch launch = {.config = c->config, .schedule = c->schedule};
    family.derive(d, q, &launch);
    const int64_t split = t->split_k > t->cluster ? t->split_k : t->cluster;
    return (model_choice){c->config, (int32_t)(launch.plan.steps_per_cta > split ? launch.plan.steps_per_cta : split),
                          launch.plan.grid};
}

/* Microseconds of a choice; below 0 where the family has no such choice. */
static double gemm_model_us(const model_gpu *facts, const model_problem *problem, const model_choice *choice)
{
    const cuda_gpu gpu = gpu_of(facts);
    const nk_gemm_problem p = gemm_of(problem);
    gemm_call call;
    gemm_describe_gemm(&p, &call);
    const gemm_query q = {.family = &family, .gpu = &gpu, .forced = choice->tile};
    for (int schedule = 0; schedule < family.schedules; schedule++) {
        const gemm_candidate c = {.config = choice->tile, .schedule = schedule};
        if (family.why_not_config(&call.desc, &q, &c)) continue;
        const model_choice same = shown(&call.desc, &q, &c);
        if (same.split == choice->split && same.grid == choice->grid) return family.us(&call.desc, &q, &c);
    }
    return -1;
}

static bool gemm_model_pick(const model_gpu *facts, const model_problem *problem, int32_t tile, bool invariant,
                            model_choice *choice)
{
    const cuda_gpu gpu = gpu_of(facts);
    const nk_gemm_problem p = gemm_of(problem);
    gemm_call call;
    gemm_describe_gemm(&p, &call);
    const gemm_query q = {
        .family = &family, .gpu = &gpu, .forced = tile < 0 ? NK_TILE_ANY : tile, .batch_invariant = invariant};
    const gemm_pick pick = fastest_of(&call.desc, &q);
    if (pick.best.config != NK_TILE_ANY) *choice = shown(&call.desc, &q, &pick.best);
    return pick.best.config != NK_TILE_ANY;
}
