/* Chooses a tile configuration by cost: candidates, whether they can serve the call, what they cost, and a memo. */
#include "gemm_plan.h"

#include "nk_memo.h"

#include <stddef.h>

const char gemm_no_schedule[] = "";

/* The fastest candidate. */
typedef struct gemm_pick {
    gemm_candidate best; /* .config: NK_TILE_ANY, and why_not says for which reason */
    const char *why_not;
} gemm_pick;

static gemm_pick fastest_of(const gemm_desc *d, const gemm_query *q)
{
    const gemm_family *f = q->family;
    const int only = q->forced == NK_TILE_ANY && q->batch_invariant ? f->invariant : q->forced;
    gemm_pick pick = {.best.config = NK_TILE_ANY};
    for (int config = 0; config < f->count; config++) {
        if (only != NK_TILE_ANY && config != only) continue;
        for (int schedule = 0; schedule < f->schedules; schedule++) {
            gemm_candidate c = {.config = config, .schedule = schedule};
            const char *why = f->kernel(d, config) ? f->why_not_config(d, q, &c) : GEMM_NO_KERNEL;
            if (why && why != gemm_no_schedule) pick.why_not = why;
            if (why) continue;
            c.us = f->us(d, q, &c);
            if (pick.best.config == NK_TILE_ANY || c.us < pick.best.us) pick.best = c;
        }
    }
    return pick;
}

/* All that a choice depends on, as whole words. */
typedef struct question {
    const gemm_family *family;
    const cuda_gpu *gpu;
    int64_t l, experts, expected_m;
    int16_t op, a, b, sf_layout; /* dtypes of the operands, and the weights' layout */
    int16_t batch_invariant, is_activated, is_partial, tokens_have_boxes;
    int32_t forced, count;
    struct {
        int64_t m, n, k;
    } member[GEMM_MEMBERS]; /* the first `count` are compared */
} question;

/* Returns its bytes. */
static size_t ask(const gemm_desc *d, const gemm_query *q, question *asked)
{
    const nk_gemm_problem *p = d->gemm;
    asked->family = q->family;
    asked->gpu = q->gpu;
    asked->l = p->l;
    asked->experts = gemm_experts(d);
    asked->expected_m = gemm_expected_m(d);
    asked->op = (int16_t)d->op;
    asked->a = (int16_t)p->a.dtype;
    asked->b = (int16_t)p->b.dtype;
    asked->sf_layout = (int16_t)p->b.sf_layout;
    asked->forced = q->forced;
    asked->batch_invariant = q->batch_invariant;
    asked->count = d->count;
    asked->is_partial = d->is_partial;
    asked->is_activated = d->activation != NULL;
    asked->tokens_have_boxes = gemm_tokens_have_boxes(p);
    for (int i = 0; i < d->count; i++) {
        asked->member[i].m = d->members[i]->m;
        asked->member[i].n = d->members[i]->n;
        asked->member[i].k = d->members[i]->k;
    }
    return offsetof(question, member) + (size_t)d->count * sizeof asked->member[0];
}

/* What a memo answers: the launch of the fastest candidate, but for what no question has; or why there is none. */
typedef struct answer {
    gemm_launch launch;
    const char *why_not;
} answer;

static answer answer_of(const gemm_desc *d, const gemm_query *q)
{
    const gemm_pick pick = fastest_of(d, q);
    if (pick.best.config == NK_TILE_ANY) return (answer){.why_not = pick.why_not};
    const gemm_config *config = &q->family->configs[pick.best.config];
    answer found = {.launch = {.family = q->family,
                               .config = pick.best.config,
                               .schedule = pick.best.schedule,
                               .us = pick.best.us,
                               .overlap = true,
                               .plan = {.tile = q->family->tiles->tiles[pick.best.config],
                                        .tile_m = config->tile_m,
                                        .tile_n = config->tile_n,
                                        .tile_k = config->tile_k,
                                        .stages = config->stages,
                                        .cluster = config->cluster,
                                        .split = config->split_k,
                                        .batch_invariant = q->batch_invariant}}};
    q->family->derive(d, q, &found.launch);
    return found;
}

/* Of this thread's memo: the next calls ask the same, and choosing takes a fifth of a call. */
static const answer *remembered(const gemm_desc *d, const gemm_query *q)
{
    NK_MEMO(question, answer, memo);
    question asked;
    const size_t bytes = ask(d, q, &asked), at = nk_memo_slot(&asked, bytes);
    if (memcmp(&memo[at].asked, &asked, bytes) != 0) {
        memo[at].answer = answer_of(d, q);
        memcpy(&memo[at].asked, &asked, bytes);
    }
    return &memo[at].answer;
}

nk_status gemm_plan_launch(const gemm_row *row, const gemm_desc *d, const gemm_query *q, nk_plan *plan,
                           gemm_launch *launch)
{
    const gemm_family *f = q->family;
    const answer *found = NULL;
    const bool asks = d->op != GEMM_LIST && f->why_not; /* of a list's groups has been asked before */
    const char *why = asks ? f->why_not(d, q) : NULL;
    if (!why) {
        found = remembered(d, q);
        why = found->why_not;
    }
    if (why && q->forced != NK_TILE_ANY) return NK_TILE_REFUSE(f->tiles, q->forced, "%s", why);
    NK_CHECK(!why || !row->is_last, NK_BACKEND_ERROR,
             "cuda:%d: %d bytes of shared memory for a CTA, too little for any tile", q->gpu->index,
             q->gpu->smem_per_cta);
    if (why) return nk_decline(plan, why);
    *launch = found->launch;
    launch->kernel = f->kernel(d, launch->config);
    launch->pdl = q->pdl;
    launch->overlap = launch->overlap && q->pdl != NK_PDL_OFF;
    launch->plan.kernel = launch->kernel->name;
    launch->plan.backend = plan->backend;
    launch->plan.declined_by = plan->declined_by;
    launch->plan.declined = plan->declined;
    *plan = launch->plan;
    return NK_OK;
}

nk_status gemm_launch_kernel(const gemm_desc *d, const gemm_launch *c, void *const args[], const nk_exec *exec)
{
    const cuda_grid grid = {.x = c->plan.grid,
                            .threads = c->plan.threads,
                            .smem_bytes = c->smem_bytes,
                            .cluster.x = c->plan.cluster,
                            .overlap = c->overlap};
    return cuda_launch(c->kernel, d->gemm->device, exec->stream, &grid, args);
}

nk_status gemm_query_of(const gemm_family *f, nk_device device, const nk_settings *settings, gemm_query *q)
{
    *q = (gemm_query){.family = f,
                      .forced = nk_tile_forced(settings, f->tiles),
                      .batch_invariant = settings->batch_invariant,
                      .pdl = settings->pdl};
    NK_TRY(nk_late_limit(NK_ROW_LIMIT, INT32_MAX, &q->row_limit));
    return cuda_gpu_of(device, &q->gpu);
}

nk_status gemm_decline(const gemm_family *f, const nk_settings *settings, const char *why, nk_plan *plan)
{
    const int forced = why ? nk_tile_forced(settings, f->tiles) : NK_TILE_ANY;
    if (forced != NK_TILE_ANY) return NK_TILE_REFUSE(f->tiles, forced, "%s", why);
    return why ? nk_decline(plan, why) : NK_OK;
}
