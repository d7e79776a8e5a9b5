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

/* Lists: a launch for each GEMM_MEMBERS groups. */
nk_status gemm_plan_list(const gemm_row *row, const nk_grouped_gemm_problem *p, const nk_settings *settings,
                         nk_plan *plan, void *choice);
nk_status gemm_run_list(const gemm_row *row, const nk_grouped_gemm_problem *p, const void *choice, const nk_exec *exec);

/* Slices of a call whose workspace would be too large, which are multiplied one after the other: of rows, or of
 * batches. */
typedef struct gemm_slices {
    int64_t rows, batches; /* of a slice */
} gemm_slices;

gemm_slices gemm_slices_of(const gemm_family *family, const gemm_desc *d);

/* Whether tensor maps can begin at every slice: those of the first are checked, the rest begin at other batches. */
bool gemm_slices_are_aligned(const gemm_slices *slices, const gemm_desc *d);

/* The slice that begins at this batch and this row. */
void gemm_slice(const gemm_desc *d, const gemm_slices *slices, int64_t batch, int64_t row, gemm_call *slice);

#endif
