/* Products of groups: launches that take up to 32 of a list, or one that takes all experts. Operators differ in their
 * kernels. */
#ifndef NK_SM80_GROUPS_H
#define NK_SM80_GROUPS_H

#include "sm80_gemm_plan.h"

/* Of one tile: by kind, and last the one that adds the parts of split tiles. NULL where the operator has none. */
typedef cuda_kernel *sm80_group_kernels[SM80_GEMM_KIND_COUNT + 1];

typedef struct sm80_group_operator {
    const sm80_group_kernels *kernels; /* by tile */
    int outputs_per_warp;              /* of its 32 weight rows */
    bool splits;                       /* tiles; else a row's bits never depend on the others */
} sm80_group_operator;

nk_status sm80_groups_plan(const nk_grouped_gemm_problem *p, const sm80_group_operator *op, const nk_settings *settings,
                           nk_plan *plan, void *choice);

/* `more` is what kernels take behind the groups, or NULL. */
nk_status sm80_groups_run(const nk_grouped_gemm_problem *p, const sm80_group_operator *op, const void *more,
                          const void *choice, const nk_exec *exec);

#endif
