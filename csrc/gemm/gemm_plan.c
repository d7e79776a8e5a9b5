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
    int64_t l, m, n, k, experts;
    int16_t op, a, b, sf_layout; /* dtypes of the operands, and the weights' layout */
    int32_t forced, batch_invariant;
} question;

typedef struct list_question {
    question first;
    int32_t count, is_partial;
    struct {
        int64_t m, n, k;
    } member[GEMM_MEMBERS]; /* the first `count` are compared */
} list_question;

static question question_of(const gemm_desc *d, const gemm_query *q)
{
    const nk_gemm_problem *p = d->gemm;
    return (question){.family = q->family,
                      .gpu = q->gpu,
                      .l = p->l,
                      .m = p->m,
                      .n = p->n,
                      .k = p->k,
                      .experts = gemm_experts(d),
                      .op = (int16_t)d->op,
                      .a = (int16_t)p->a.dtype,
                      .b = (int16_t)p->b.dtype,
                      .sf_layout = (int16_t)p->b.sf_layout,
                      .forced = q->forced,
                      .batch_invariant = q->batch_invariant};
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
                               .threads = 128 * config->warpgroups,
                               .stages = config->stages,
                               .tile_m = config->tile_m,
                               .tile_n = config->tile_n,
                               .tile_k = config->tile_k,
                               .overlap = true,
                               .batch_invariant = q->batch_invariant}};
    q->family->derive(d, q, &found.launch);
    return found;
}

/* Of this thread's memos: the next calls ask the same, and choosing takes a fifth of a call. */
static const answer *remembered(const gemm_desc *d, const gemm_query *q)
{
    NK_MEMO(question, answer, memo);
    const question asked = question_of(d, q);
    const size_t at = nk_memo_slot(&asked, sizeof asked);
    if (memcmp(&memo[at].asked, &asked, sizeof asked) != 0) {
        memo[at].answer = answer_of(d, q);
        memo[at].asked = asked;
    }
    return &memo[at].answer;
}

static const answer *remembered_list(const gemm_desc *d, const gemm_query *q)
{
    NK_MEMO(list_question, answer, memo);
    list_question asked;
    asked.first = question_of(d, q);
    asked.count = d->count;
    asked.is_partial = d->is_partial;
    for (int i = 0; i < d->count; i++) {
        asked.member[i].m = d->members[i]->m;
        asked.member[i].n = d->members[i]->n;
        asked.member[i].k = d->members[i]->k;
    }
    const size_t bytes = offsetof(list_question, member) + (size_t)d->count * sizeof asked.member[0];
    const size_t at = nk_memo_slot(&asked, bytes);
    if (memcmp(&memo[at].asked, &asked, bytes) != 0) {
        memo[at].answer = answer_of(d, q);
        memcpy(&memo[at].asked, &asked, bytes);
    }
    return &memo[at].answer;
}

static void explain(const gemm_launch *c, const gemm_config *config, nk_plan *plan)
{
    plan->kernel = c->kernel->name;
    plan->why = c->why;
    plan->tile = c->family->tiles->tiles[c->config];
    plan->tile_m = c->tile_m;
    plan->tile_n = c->tile_n;
    plan->tile_k = c->tile_k;
    plan->grid = c->grid;
    plan->threads = c->threads;
    plan->stages = c->stages;
    plan->cluster = config->cluster;
    plan->split = config->split_k;
    plan->steps_per_cta = c->steps_per_cta;
    plan->workspace_bytes = c->workspace_bytes;
    plan->batch_invariant = c->batch_invariant;
}

nk_status gemm_plan_launch(const gemm_row *row, const gemm_desc *d, const gemm_query *q, nk_plan *plan,
                           gemm_launch *launch)
{
    const gemm_family *f = q->family;
    const answer *found = NULL;
    const char *why = d->op == GEMM_LIST ? NULL : f->why_not(d, q); /* of a list's groups has been asked before */
    if (!why) {
        found = d->op == GEMM_LIST ? remembered_list(d, q) : remembered(d, q);
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
    explain(launch, &f->configs[launch->config], plan);
    return NK_OK;
}

nk_status gemm_launch_kernel(const gemm_desc *d, const gemm_launch *c, void *const args[], const nk_exec *exec)
{
    const cuda_grid grid = {.x = c->grid,
                            .threads = c->threads,
                            .smem_bytes = c->smem_bytes,
                            .cluster.x = c->family->configs[c->config].cluster,
                            .overlap = c->overlap};
    return cuda_launch(c->kernel, d->gemm->device, exec->stream, &grid, args);
}

nk_status gemm_query_of(const gemm_family *f, nk_device device, const nk_settings *settings, gemm_query *q)
{
    *q = (gemm_query){.family = f,
                      .forced = nk_tile_forced(settings, f->tiles),
                      .batch_invariant = settings->batch_invariant,
                      .pdl = settings->pdl};
    return cuda_gpu_of(device, &q->gpu);
}

nk_status gemm_decline(const gemm_family *f, const nk_settings *settings, const char *why, nk_plan *plan)
{
    const int forced = why ? nk_tile_forced(settings, f->tiles) : NK_TILE_ANY;
    if (forced != NK_TILE_ANY) return NK_TILE_REFUSE(f->tiles, forced, "%s", why);
    return why ? nk_decline(plan, why) : NK_OK;
}

static bool is_whole(const gemm_slices *s, const gemm_desc *d)
{
    return s->rows >= d->gemm->m && s->batches >= d->gemm->l;
}

nk_status gemm_plan_tiles(const gemm_row *row, const gemm_family *f, const gemm_desc *d, const nk_settings *settings,
                          nk_plan *plan, gemm_launch *launch)
{
    gemm_query q;
    NK_TRY(gemm_query_of(f, d->gemm->device, settings, &q));
    const gemm_slices slices = gemm_slices_of(f, d);
    if (is_whole(&slices, d)) return gemm_plan_launch(row, d, &q, plan, launch);
    if (!gemm_slices_are_aligned(&slices, d)) return nk_decline(plan, "batches are not aligned");
    gemm_call first;
    gemm_slice(d, &slices, 0, 0, &first);
    const nk_gemm_problem *p = first.desc.gemm;
    NK_TRY(gemm_plan_launch(row, &first.desc, &q, plan, launch));
    launch->us *= (double)d->gemm->l * (double)d->gemm->m / ((double)p->l * (double)p->m);
    return NK_OK;
}

nk_status gemm_run_tiles(const gemm_desc *d, const gemm_launch *launch, const nk_exec *exec)
{
    const gemm_family *f = launch->family;
    const gemm_slices slices = gemm_slices_of(f, d);
    if (is_whole(&slices, d)) return f->launch(d, launch, exec);
    gemm_call slice;
    for (int64_t batch = 0; batch < d->gemm->l; batch += slices.batches) {
        for (int64_t row = 0; row < d->gemm->m; row += slices.rows) {
            gemm_slice(d, &slices, batch, row, &slice);
            NK_TRY(f->launch(&slice.desc, launch, exec));
        }
    }
    return NK_OK;
}
