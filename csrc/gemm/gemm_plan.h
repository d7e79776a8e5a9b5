/* Plans of launches, for the operators' cells and for lists. */
#ifndef NK_GEMM_PLAN_H
#define NK_GEMM_PLAN_H

#include "gemm_family.h"

nk_status gemm_query_of(const gemm_family *family, nk_device device, const nk_settings *settings, gemm_query *query);

/* Of one launch; declines, or refuses the forced tile. */
nk_status gemm_plan_launch(const gemm_row *row, const gemm_desc *d, const gemm_query *query, nk_plan *plan,
                           gemm_launch *launch);

/* Of one problem, which takes a launch for each slice of it. */
nk_status gemm_plan_tiles(const gemm_row *row, const gemm_family *family, const gemm_desc *d,
                          const nk_settings *settings, nk_plan *plan, gemm_launch *launch);
nk_status gemm_run_tiles(const gemm_desc *d, const gemm_launch *launch, const nk_exec *exec);

/* The groups of a list's launch. */
typedef struct gemm_groups {
    gemm_desc desc;
    const nk_gemm_problem *members[GEMM_MEMBERS];
} gemm_groups;

/* The next launch: groups from *at on, which becomes where the one after it begins. False past the end. */
bool gemm_next_launch(const nk_grouped_gemm_problem *p, const gemm_family *f, int64_t *at, gemm_groups *g);

/* Lists: a launch for each GEMM_MEMBERS groups. */
nk_status gemm_plan_list(const gemm_row *row, const gemm_desc *d, const nk_settings *settings, nk_plan *plan,
                         void *choice);
nk_status gemm_run_list(const gemm_row *row, const gemm_desc *d, const void *choice, const nk_exec *exec);

#endif
