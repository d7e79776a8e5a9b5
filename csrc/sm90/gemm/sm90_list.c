/* Lists of groups on Hopper: one launch whose persistent CTAs take tiles of all groups, behind a prologue that brings
 * all tokens to 16 bits; for few tokens one gemv of all groups; or a gemm for each group, one after the other. In the
 * one launch of tiles each group has one of the pipeline's tile_m. */
#include "gemm/gemm_plan.h"
#include "sm90/gemv/sm90_gemv_scheduler.h"
#include "sm90_gemm_costs.h"
#include "sm90_gemm_family.h"
#include "sm90_list_params.h"

#include <string.h>

_Static_assert(sizeof(sm90_list) <= CUDA_MAX_PARAM_BYTES, "a list is one kernel's parameters");
_Static_assert(SM90_LIST_MAX_GROUPS == GEMM_MEMBERS, "one launch takes all members of a description");

typedef struct list_pipeline {
    cuda_kernel *kernels[2];                /* for fp16 tokens, which NVFP4 ones become, and for bf16 */
    int32_t tile_ms[SM90_LIST_MAX_TILE_MS]; /* 0 after the last */
} list_pipeline;

static const list_pipeline pipelines[SM90_GEMM_TILE_COUNT] = {
#define PIPELINE(name, ...) \
    [SM90_GEMM_##name] = {{&sm90_list_gemm_##name##_fp16, &sm90_list_gemm_##name##_bf16}, {__VA_ARGS__}},
    SM90_LIST_PIPELINES(PIPELINE)
#undef PIPELINE
};

#define FIRST_PIPELINE SM90_GEMM_w32
#define APART (SM90_LIST_SCHEDULES - 1) /* the schedule that is a gemm for each group */

_Static_assert(APART == SM90_LIST_MAX_TILE_MS, "a schedule for each tile_m, and one more");

/* ---------------------------------------------------------------------------------------------------------------- */
/* The one launch: its tiles and their order                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A group's tiles. */
typedef struct group_tiles {
    uint8_t member, tile_m_index;
    int64_t count;
    double us; /* of each */
} group_tiles;

typedef struct arrangement {
    group_tiles of[GEMM_MEMBERS];
    int64_t tiles;
} arrangement;

/* Steps of K of a group's rows in the workspace: whole stages, so that nothing is multiplied that nobody has written.
 */
static int64_t sm90_list_whole_steps(int64_t k, const gemm_config *t)
{
    return nk_ceil_div(nk_ceil_div(k, SM90_GEMM_STEP), sm90_gemm_steps(t)) * sm90_gemm_steps(t);
}

static double sm90_list_tile_us(const gemm_desc *d, const nk_gemm_problem *p, const gemm_config *t, int32_t tile_m)
{
    return (double)sm90_list_whole_steps(p->k, t) * sm90_gemm_step_us(t, tile_m, sm90_gemm_lanes_copy(d, t)) +
           SM90_GEMM_TILE_US + tile_m * SM90_GEMM_TILE_TOKEN_US;
}

/* Each group has as few tiles as tile_m up to the `largest`-th allow, and the least tile_m for so many. The longest
 * come first. */
static void sm90_list_arrange(const gemm_desc *d, int32_t config, int32_t largest, arrangement *a)
{
    const gemm_config *t = &sm90_gemm.configs[config];
    const int32_t *tile_ms = pipelines[config].tile_ms;
    a->tiles = 0;
    for (int i = 0; i < d->count; i++) {
        const nk_gemm_problem *p = d->members[i];
        const int64_t count = nk_ceil_div(p->m, tile_ms[largest]);
        int tile_m_index = 0, at = i;
        while (count * tile_ms[tile_m_index] < p->m)
            tile_m_index++;
        const group_tiles its = {.member = (uint8_t)i,
                                 .tile_m_index = (uint8_t)tile_m_index,
                                 .count = nk_ceil_div(p->m, tile_ms[tile_m_index]) * nk_ceil_div(p->n, t->tile_n),
                                 .us = sm90_list_tile_us(d, p, t, tile_ms[tile_m_index])};
        for (; at > 0 && a->of[at - 1].us < its.us; at--)
            a->of[at] = a->of[at - 1];
        a->of[at] = its;
        a->tiles += its.count;
    }
}

/* What the CTA that takes longest takes, if tiles are given out forth and back. */
static double sm90_list_longest_us(const arrangement *a, int count, int64_t ctas)
{
    enum { MANY = 64 }; /* waves: then all CTAs take the same but for a tile */
    double all = 0, longest = 0;
    for (int i = 0; i < count; i++)
        all += a->of[i].us * (double)a->of[i].count;
    if (a->tiles > MANY * ctas) return all / (double)ctas + a->of[0].us;
    for (int64_t cta = 0; cta < ctas; cta++) {
        double sum = 0;
        int64_t at = cta, begin = 0;
        for (int64_t first = 0, i = 0; first + at < a->tiles; first += ctas, at = ctas - 1 - at) {
            while (first + at >= begin + a->of[i].count)
                begin += a->of[i++].count;
            sum += a->of[i].us;
        }
        longest = nk_larger(longest, sum);
    }
    return longest;
}

static double sm90_list_one_launch_us(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    double tokens = 0, weights = 0;
    arrangement a;
    sm90_list_arrange(d, c->config, c->schedule, &a);
    for (int i = 0; i < d->count; i++) {
        const nk_gemm_problem *p = d->members[i];
        tokens += 2.0 * (double)p->m * (double)p->k;
        weights += 9.0 / 16 * (double)p->n * (double)p->k;
    }
    const double loop = (1 + SM90_GEMM_BUSY) * sm90_list_longest_us(&a, d->count, q->gpu->sms);
    return SM90_GEMM_LAUNCH_US + tokens / SM90_GEMM_TOKEN_BYTES_PER_US +
           nk_larger(loop, weights / SM90_GEMM_BYTES_PER_US);
}

/* Of a gemm for each group, with any of the family's tiles. */
static double sm90_list_apart_us(const gemm_desc *d, const gemm_query *q)
{
    double sum = 0;
    for (int i = 0; i < d->count; i++) {
        const gemm_desc one = {.op = GEMM, .gemm = d->members[i], .count = 1};
        double best = INFINITY;
        for (int config = 0; config < SM90_GEMM_TILE_COUNT; config++) {
            if (!sm90_gemm.kernel(&one, config)) continue;
            const double us = sm90_gemm_us(&one, q, &(gemm_candidate){.config = config});
            best = us < best ? us : best;
        }
        sum += best;
    }
    return sum;
}

cuda_kernel *sm90_list_kernel_of(const gemm_desc *d, int config)
{
    return pipelines[config].kernels[d->gemm->a.dtype == NK_BF16];
}

bool sm90_list_has_schedule(const gemm_candidate *c)
{
    return c->schedule == APART ? c->config == FIRST_PIPELINE : pipelines[c->config].tile_ms[c->schedule] > 0;
}

double sm90_list_us(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    return c->schedule == APART ? sm90_list_apart_us(d, q) : sm90_list_one_launch_us(d, q, c);
}

static void sm90_list_rows_and_steps(const gemm_desc *d, const gemm_config *t, int64_t *rows, int64_t *steps)
{
    *rows = *steps = 0;
    for (int i = 0; i < d->count; i++) {
        const int64_t its = sm90_list_whole_steps(d->members[i]->k, t);
        *rows += d->members[i]->m;
        *steps = its > *steps ? its : *steps;
    }
}

void sm90_list_derive(const gemm_desc *d, const gemm_query *q, gemm_launch *c)
{
    const gemm_config *t = &sm90_gemm.configs[c->config];
    arrangement a;
    int64_t rows, steps;
    if (c->schedule == APART) return;
    sm90_list_arrange(d, c->config, c->schedule, &a);
    sm90_list_rows_and_steps(d, t, &rows, &steps);
    for (int i = 0; i < d->count; i++) {
        c->order[i] = a.of[i].member;
        c->tile_m_index[i] = a.of[i].tile_m_index;
    }
    c->smem_bytes = sm90_gemm_tile_smem(t, 1);
    c->plan.grid = a.tiles < q->gpu->sms ? a.tiles : q->gpu->sms;
    c->plan.tile_m = pipelines[c->config].tile_ms[a.of[0].tile_m_index];
    c->plan.threads = sm90_gemm_threads(t);
    c->plan.workspace_bytes = (rows + t->tile_m) * steps * SM90_GEMM_STEP * 2;
    c->plan.why = "one launch for all groups: persistent CTAs take their tiles, the longest first; a prologue kernel "
                  "brings all tokens to 16 bits";
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Its launch                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A group but for its tensor map. Batch strides become 0: kernels multiply them by the group's number, and the stride
 * of one batch may be any number; so may that of one row. The output and row_scale move so that row first_row of the
 * workspace is their row 0. */
static void sm90_list_fill_group(const nk_gemm_problem *p, const gemm_config *t, int32_t tile_m_index, int32_t tile_m,
                                 int64_t first_row, sm90_list_group *g)
{
    const gemm_desc d = {.op = GEMM, .gemm = p, .count = 1};
    g->gemm = *p;
    g->gemm.b.batch_stride = g->gemm.b.sf_batch_stride = g->gemm.d.batch_stride = 0;
    if (p->m <= 1) g->gemm.d.row_stride = g->gemm.row_scale.stride = 0;
    g->gemm.d.data -= first_row * g->gemm.d.row_stride;
    if (p->row_scale.data) g->gemm.row_scale.data -= first_row * g->gemm.row_scale.stride;
    g->params = sm90_gemm_params_of(&d, t);
    g->params.m_tiles = (int32_t)nk_ceil_div(p->m, tile_m);
    g->params.tiles = g->params.n_tiles * g->params.m_tiles;
    g->first_row = (int32_t)first_row;
    g->tile_m_index = tile_m_index;
    g->tile_m = tile_m;
}

/* Groups, and tensor maps of each group's weights and, for each tile_m that a group has, of the tokens. */
static nk_status sm90_list_fill(const gemm_desc *d, const gemm_launch *c, int64_t rows, sm90_list *list,
                                sm90_list_prepare_a *tokens)
{
    const gemm_config *t = &sm90_gemm.configs[c->config];
    cuda_boxes boxes[GEMM_MEMBERS + SM90_LIST_MAX_TILE_MS];
    cuda_tensor_map *to[GEMM_MEMBERS + SM90_LIST_MAX_TILE_MS];
    int32_t count = 0, seen = 0; /* a bit for each tile_m */
    int64_t row = 0;
    list->count = tokens->count = d->count;
    list->params = (sm90_gemm_params){0};
    memset(list->tokens, 0, sizeof list->tokens);
    for (int i = 0; i < d->count; i++) {
        const nk_gemm_problem *p = d->members[c->order[i]];
        const gemm_desc one = {.op = GEMM, .gemm = p, .count = 1};
        const int32_t tile_m_index = c->tile_m_index[i], tile_m = pipelines[c->config].tile_ms[tile_m_index];
        sm90_list_group *g = &list->group[i];
        sm90_list_fill_group(p, t, tile_m_index, tile_m, row, g);
        g->first_tile = list->params.tiles;
        list->params.tiles += g->params.tiles;
        tokens->group[i] = (sm90_list_rows){
            .a = p->a, .k = p->k, .first_row = (int32_t)row, .k_steps = (int32_t)sm90_list_whole_steps(p->k, t)};
        tokens->group[i].a.batch_stride = tokens->group[i].a.sf_batch_stride = 0;
        row += p->m;
        boxes[count] = sm90_gemm_weight_boxes(&one, t, "weights", &p->b);
        to[count++] = &g->weights;
        if (seen >> tile_m_index & 1) continue;
        seen |= 1 << tile_m_index;
        boxes[count] = sm90_gemm_token_boxes(&tokens->to, t, rows + t->tile_m, rows, 1, tile_m);
        to[count++] = &list->tokens[tile_m_index];
    }
    return cuda_encode_maps(d->gemm->device, count, boxes, to);
}

nk_status sm90_list_launch(const gemm_desc *d, const gemm_launch *c, const nk_exec *exec)
{
    const nk_device device = d->gemm->device;
    sm90_list list;
    sm90_list_prepare_a tokens;
    int64_t rows, steps;
    sm90_list_rows_and_steps(d, &sm90_gemm.configs[c->config], &rows, &steps);
    tokens.to = (sm90_prepared_a){
        .data = exec->workspace, .k_steps = (int32_t)steps, .release_first = c->pdl == NK_PDL_WEIGHTS};
    NK_TRY(sm90_list_fill(d, c, rows, &list, &tokens));
    const cuda_grid prologue = {.x = rows,
                                .y = nk_ceil_div(16 * steps, SM90_PREPARE_A_THREADS),
                                .threads = SM90_PREPARE_A_THREADS,
                                .overlap = c->overlap};
    NK_TRY(cuda_launch(&sm90_prepare_a_list, device, exec->stream, &prologue, (void *[]){&tokens}));
    return gemm_launch_kernel(d, c, (void *[]){&list}, exec);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* One launch, or one for each group                                                                                */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct list_choice {
    enum { ONE_LAUNCH, ONE_GEMV, ONE_EACH } form;
    union {
        gemm_launch launch;
        sm90_gemv_choice gemv;
        nk_settings settings; /* of a launch each: there may be any number, which are planned again when they run */
    };
} list_choice;

NK_CHOICE_FITS(list_choice);

#define GEMV_SERVES_NONE "no tile of sm90/gemv serves all groups"
#define SAY_APART(reason) "a gemm for each group, one after the other: " reason "; this is the first one's"

static bool sm90_list_is_alike(const nk_gemm_problem *p, const nk_gemm_problem *first)
{
    return p->a.dtype == first->a.dtype && p->b.sf_layout == first->b.sf_layout;
}

/* The groups that are not empty; else why they have no launch of their own. */
static const char *sm90_list_one_launch_of(const nk_grouped_gemm_problem *p, const gemm_query *q, gemm_groups *groups)
{
    const gemm_candidate largest = {.config = SM90_GEMM_w256};
    int64_t at = 0, rows = 0, longest_k = 0;
    gemm_groups more;
    const int count = gemm_next_launch(p, q->family, &at, groups) ? groups->desc.count : 0;
    for (int i = 0; i < count; i++) {
        const nk_gemm_problem *one = groups->members[i];
        const gemm_desc alone = {.op = GEMM, .gemm = one, .count = 1};
        if (sm90_gemm_why_not(&alone, q) || sm90_gemm_why_not_config(&alone, q, &largest))
            return SAY_APART("no tile serves all of them");
        if (!sm90_list_is_alike(one, groups->members[0])) return SAY_APART("their types or layouts are not the same");
        rows += one->m;
        longest_k = one->k > longest_k ? one->k : longest_k;
    }
    if (gemm_next_launch(p, q->family, &at, &more)) return SAY_APART("there are more than 32");
    if (count < 2) return SAY_APART("there is one");
    const int64_t row_bytes = nk_ceil_div(longest_k, 2 * SM90_GEMM_STEP) * 2 * SM90_GEMM_STEP * 2;
    return (rows + SM90_GEMM_MAX_TILE_M) * row_bytes > SM90_GEMM_MOST_WORKSPACE
               ? SAY_APART("their tokens take more than 256 MB in 16 bits")
               : NULL;
}

/* Plans a gemm for each group. Declines if a group has work for less than half of the GPU: the sm80 row takes such
 * groups all at once. The plan says `why`. */
static nk_status sm90_list_plan_apart(const gemm_row *row, const nk_grouped_gemm_problem *p, const gemm_query *q,
                                      const nk_settings *settings, const char *why, nk_plan *plan)
{
    nk_plan first = {0};
    for (int64_t g = 0; g < p->groups; g++) {
        if (gemm_is_empty_group(&p->list[g])) continue;
        nk_plan group = *plan;
        gemm_call call;
        _Alignas(NK_CHOICE_ALIGNMENT) unsigned char choice[NK_CHOICE_BYTES];
        const nk_status status = gemm_plan(row, gemm_describe_gemm(&p->list[g], &call), settings, &group, choice);
        if (status == NK_DECLINED) return nk_decline(plan, group.declined);
        NK_TRY(status);
        if (q->forced == NK_TILE_ANY && group.grid < q->gpu->sms / 2)
            return nk_decline(plan, "groups with too little work for half of the GPU are faster all at once");
        const int64_t most =
            group.workspace_bytes > first.workspace_bytes ? group.workspace_bytes : first.workspace_bytes;
        if (!first.kernel) first = group;
        first.workspace_bytes = most;
    }
    if (!first.kernel) return nk_decline(plan, GEMM_NOTHING);
    *plan = first;
    plan->why = why;
    return NK_OK;
}

static nk_status sm90_list_run_apart(const gemm_row *row, const nk_grouped_gemm_problem *p, const nk_settings *settings,
                                     const nk_exec *exec)
{
    for (int64_t g = 0; g < p->groups; g++) {
        if (gemm_is_empty_group(&p->list[g])) continue;
        nk_plan group = {0};
        gemm_call call;
        _Alignas(NK_CHOICE_ALIGNMENT) unsigned char choice[NK_CHOICE_BYTES];
        NK_TRY(gemm_plan(row, gemm_describe_gemm(&p->list[g], &call), settings, &group, choice));
        NK_TRY(gemm_run(row, &call.desc, choice, exec));
    }
    return NK_OK;
}

/* The gemv where it can serve all groups and is faster than `us`. */
static nk_status sm90_list_plan_gemv(const gemm_desc *d, const gemm_query *q, const nk_settings *settings, double us,
                                     nk_plan *plan, sm90_gemv_choice *c)
{
    gemm_groups groups;
    int64_t at = 0;
    nk_plan found = *plan;
    const bool is_forced = nk_tile_forced(settings, &sm90_gemv_family) != NK_TILE_ANY;
    if (q->forced != NK_TILE_ANY || !gemm_next_launch(d->list, q->family, &at, &groups)) return NK_DECLINED;
    if (groups.desc.count < 2 && !is_forced) return NK_DECLINED; /* one gemm chooses among more kernels */
    NK_TRY(sm90_plan_gemv_list(&groups.desc, settings, &found, c));
    if (c->schedule.us + SM90_GEMM_GEMV_US > us) return NK_DECLINED;
    *plan = found;
    return NK_OK;
}

nk_status sm90_plan_list(const gemm_row *row, const gemm_desc *d, const nk_settings *settings, nk_plan *plan,
                         void *choice)
{
    const nk_grouped_gemm_problem *p = d->list;
    list_choice *c = choice;
    gemm_groups groups;
    gemm_query q;
    gemm_launch launch = {.us = INFINITY};
    nk_plan found = *plan;
    NK_TRY(gemm_query_of(&sm90_gemm, p->device, settings, &q));
    const bool is_gemv_forced = nk_tile_forced(settings, &sm90_gemv_family) != NK_TILE_ANY;
    const char *apart = is_gemv_forced            ? GEMV_SERVES_NONE
                        : q.forced != NK_TILE_ANY ? SAY_APART("a tile is forced")
                                                  : sm90_list_one_launch_of(p, &q, &groups);
    if (!apart) {
        NK_TRY(gemm_plan_launch(row, &groups.desc, &q, &found, &launch));
        if (launch.schedule == APART)
            apart = SAY_APART("that is faster by cost");
        else if (found.grid < q.gpu->sms / 2)
            apart = SAY_APART("they have few tiles");
    }
    const nk_status by_gemv = sm90_list_plan_gemv(d, &q, settings, launch.us, plan, &c->gemv);
    c->form = by_gemv == NK_OK ? ONE_GEMV : apart ? ONE_EACH : ONE_LAUNCH;
    if (by_gemv != NK_DECLINED) return by_gemv;
    if (is_gemv_forced) return nk_decline(plan, GEMV_SERVES_NONE);
    if (apart) {
        c->settings = *settings;
        return sm90_list_plan_apart(row, p, &q, settings, apart, plan);
    }
    c->launch = launch;
    *plan = found;
    return NK_OK;
}

nk_status sm90_run_list(const gemm_row *row, const gemm_desc *d, const void *choice, const nk_exec *exec)
{
    const list_choice *c = choice;
    gemm_groups groups;
    int64_t at = 0;
    if (c->form == ONE_EACH) return sm90_list_run_apart(row, d->list, &c->settings, exec);
    gemm_next_launch(d->list, &sm90_gemm, &at, &groups);
    return c->form == ONE_GEMV ? sm90_run_gemv_list(&groups.desc, &c->gemv, exec)
                               : sm90_list_launch(&groups.desc, &c->launch, exec);
}
