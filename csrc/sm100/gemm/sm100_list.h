/* A list of groups by launches of the sm100 GEMM family. */
#ifndef NK_SM100_LIST_H
#define NK_SM100_LIST_H

#include "sm100_gemm_plan.h"

/* There may be any number of groups: run plans each launch again, by these. */
typedef struct sm100_list_choice {
    int32_t forced; /* a tile, or NK_TILE_ANY */
    bool batch_invariant, overlap;
} sm100_list_choice;

nk_status sm100_list_plan(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                          sm100_list_choice *choice);
nk_status sm100_list_run(const nk_grouped_gemm_problem *p, const sm100_list_choice *choice, const nk_exec *exec);

#endif
