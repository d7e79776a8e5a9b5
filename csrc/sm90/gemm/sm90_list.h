/* Lists of groups on Hopper, for the row's table. */
#ifndef NK_SM90_LIST_H
#define NK_SM90_LIST_H

#include "gemm/gemm_plan.h"

nk_status sm90_plan_list(const gemm_row *row, const nk_grouped_gemm_problem *p, const nk_settings *settings,
                         nk_plan *plan, void *choice);
nk_status sm90_run_list(const gemm_row *row, const nk_grouped_gemm_problem *p, const void *choice, const nk_exec *exec);

#endif
