/* Lists of groups: a launch for each 32 of them, whose tiles its CTAs share. */
#include "gemm_plan.h"

/* There may be any number of launches, and room for a choice is fixed: those after the first are planned again when
 * they are launched, by the same pure function. */
typedef struct list_choice {
    gemm_launch first;
    gemm_query query;
} list_choice;

NK_CHOICE_FITS(list_choice);

bool gemm_is_empty_group(const nk_gemm_problem *p) { return p->l == 0 || p->m == 0 || p->n == 0; }

/* One family serves all groups, the first one's. */
static const gemm_family *family_of_list(const gemm_row *row, const gemm_desc *d)
{
    return d->list->groups > 0 ? row->family(d) : NULL;
}

bool gemm_next_launch(const nk_grouped_gemm_problem *p, const gemm_family *f, int64_t *at, gemm_groups *g)
{
    int count = 0;
    const nk_gemm_problem *first = NULL;
    for (; *at < p->groups && count < GEMM_MEMBERS; ++*at) {
        const nk_gemm_problem *group = &p->list[*at];
        if (gemm_is_empty_group(group)) continue;
        if (!first) first = group;
        if (f->in_one_launch && !f->in_one_launch(group, first)) break;
        int i = count++;
        for (; f->longest_first && i > 0 && g->members[i - 1]->k < group->k; i--)
            g->members[i] = g->members[i - 1];
        g->members[i] = group;
    }
    if (count == 0) return false;
    g->desc = (gemm_desc){.op = GEMM_LIST,
                          .gemm = g->members[0],
                          .params = g->members[0],
                          .activation = gemm_activation_of(p),
                          .count = count,
                          .members = g->members,
                          .is_partial = *at < p->groups};
    return true;
}

/* Why some group cannot be served by any tile, or NULL. */
static const char *why_not_groups(const gemm_row *row, const nk_grouped_gemm_problem *p, const gemm_query *q)
{
    bool any = false;
    for (int64_t g = 0; g < p->groups; g++) {
        const nk_gemm_problem *one = &p->list[g];
        if (gemm_is_empty_group(one)) continue;
        const gemm_desc d = {
            .op = GEMM_LIST, .gemm = one, .activation = gemm_activation_of(p), .count = 1, .members = &one};
        if (row->family(&d) != q->family) return GEMM_SEVERAL_TYPES;
        const char *why = q->family->why_not ? q->family->why_not(&d, q) : NULL;
        if (why) return why;
        any = true;
    }
    return any ? NULL : GEMM_NOTHING;
}

/* Describes the first launch; the workspace serves one after the other. */
nk_status gemm_plan_list(const gemm_row *row, const gemm_desc *d, const nk_settings *settings, nk_plan *plan,
                         void *choice)
{
    const nk_grouped_gemm_problem *p = d->list;
    list_choice *c = choice;
    gemm_groups groups;
    gemm_launch later;
    const gemm_family *f = family_of_list(row, d);
    if (f) NK_TRY(gemm_query_of(f, p->device, settings, &c->query));
    const char *why = f ? why_not_groups(row, p, &c->query) : GEMM_NOTHING;
    if (why && row->is_last) return NK_OK; /* no launch */
    if (!f) return nk_decline(plan, why);
    NK_TRY(gemm_decline(f, settings, why, plan));
    int64_t at = 0;
    nk_plan first = *plan;
    while (gemm_next_launch(p, f, &at, &groups)) {
        nk_plan next = *plan;
        gemm_launch *launch = first.kernel ? &later : &c->first;
        const nk_status status = gemm_plan_launch(row, &groups.desc, &c->query, &next, launch);
        if (status == NK_DECLINED) *plan = next;
        NK_TRY(status);
        if (!first.kernel) first = next;
        if (next.workspace_bytes > first.workspace_bytes) first.workspace_bytes = next.workspace_bytes;
    }
    *plan = first;
    return NK_OK;
}

nk_status gemm_run_list(const gemm_row *row, const gemm_desc *d, const void *choice, const nk_exec *exec)
{
    const list_choice *c = choice;
    const gemm_family *f = family_of_list(row, d);
    gemm_groups groups;
    int64_t at = 0;
    for (bool is_first = true; f && gemm_next_launch(d->list, f, &at, &groups); is_first = false) {
        gemm_launch launch = c->first;
        nk_plan unused = {0};
        if (!is_first) NK_TRY(gemm_plan_launch(row, &groups.desc, &c->query, &unused, &launch));
        NK_TRY(f->launch(&groups.desc, &launch, exec));
    }
    return NK_OK;
}
