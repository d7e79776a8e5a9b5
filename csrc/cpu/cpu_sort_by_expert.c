/* The permutation of route, and of ids alone: a counting sort of the selections m*k + j by expert. */
#include "cpu_backend.h"

#include "cpu_operand.h"
#include "cpu_pool.h"

#define SORTED_ROWS 16384 /* tokens of one job */

typedef struct sort {
    const nk_sort_by_expert_problem *problem;
    int32_t count[NK_MAX_EXPERTS];
    int32_t next[NK_MAX_EXPERTS], end[NK_MAX_EXPERTS]; /* in sorted_rows */
} sort;

/* Which local expert a selection goes to. The caller's ids say what was selected, until somebody else writes them: then
 * any number may come, as from the map. */
static bool read_selection(const nk_sort_by_expert_problem *p, int64_t m, int64_t i, int32_t *expert)
{
    const int32_t id = read_once(&p->ids[m * p->ids_row_stride + i * p->ids_col_stride]);
    *expert = nk_expert_of(id, p->n);
    if (*expert >= 0 && p->expert_map)
        *expert = nk_expert_of(read_once(&p->expert_map[*expert * p->expert_map_stride]), p->local_experts);
    return *expert >= 0;
}

static void count_selections(void *context, int64_t job)
{
    sort *s = context;
    const nk_sort_by_expert_problem *p = s->problem;
    for (int64_t m = job * SORTED_ROWS; m < cpu_min((job + 1) * SORTED_ROWS, p->m); m++) {
        for (int64_t i = 0; i < p->top_k; i++) {
            int32_t expert;
            if (read_selection(p, m, i, &expert)) s->count[expert]++;
        }
    }
}

static void place_selections(void *context, int64_t job)
{
    sort *s = context;
    const nk_sort_by_expert_problem *p = s->problem;
    for (int64_t m = job * SORTED_ROWS; m < cpu_min((job + 1) * SORTED_ROWS, p->m); m++) {
        for (int64_t i = 0; i < p->top_k; i++) {
            int32_t expert, entry = (int32_t)(m * p->top_k + i), row = -1;
            if (read_selection(p, m, i, &expert) && s->next[expert] < s->end[expert]) {
                row = s->next[expert]++;
                p->sorted_rows[row] = entry;
            }
            if (p->row_of) p->row_of[entry] = row;
        }
    }
}

/* Every place of sorted_rows that no selection of a local expert takes is -1. On one thread: entries of an expert keep
 * their order. */
nk_status cpu_sort_by_expert(const nk_sort_by_expert_problem *p, cpu_means means, const nk_exec *exec)
{
    (void)means;
    sort s = {.problem = p};
    int64_t jobs = nk_ceil_div(p->m, SORTED_ROWS);
    NK_TRY(cpu_for_each(exec, jobs, 1, count_selections, &s));
    int32_t end = 0;
    for (int64_t n = 0; n < p->local_experts; n++) {
        s.next[n] = p->offsets[n] = end;
        p->counts[n] = s.count[n];
        s.end[n] = end += s.count[n];
    }
    p->offsets[p->local_experts] = end;
    for (int64_t i = end; i < p->m * p->top_k; i++)
        p->sorted_rows[i] = -1;
    return cpu_for_each(exec, jobs, 1, place_selections, &s);
}
