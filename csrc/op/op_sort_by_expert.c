/* sort_by_expert: checks its arguments and dispatches. */
#include "op_route.h"

#include "backend.h"

#include <inttypes.h>

static nk_status check(const nk_sort_by_expert_args *args, nk_sort_by_expert_problem *p, nk_permutation *specs)
{
    const nk_tensor *ids = args->ids;
    nk_view v;
    *p = (nk_sort_by_expert_problem){.device = ids->device, .sorts = true};
    NK_TRY(nk_check_tensor(ids, NK_DTYPE_BIT(NK_I32), ids));
    NK_TRY(nk_rows_of(ids, "[.., k]", &v));
    NK_CHECK(args->num_experts >= 0 && args->num_experts <= NK_MAX_EXPERTS, NK_VALUE_ERROR,
             "num_experts: %" PRId64 ", expected 0 to %d", args->num_experts, NK_MAX_EXPERTS);
    p->m = v.rows;
    p->top_k = v.cols;
    p->n = args->num_experts;
    p->ids = ids->data;
    p->ids_row_stride = v.row_stride / nk_dtype_size(NK_I32);
    p->ids_col_stride = v.col_stride / nk_dtype_size(NK_I32);
    NK_TRY(nk_check_expert_map(args->expert_map, args->num_local_experts, ids, p));
    return nk_spec_permutation(ids, p, specs);
}

nk_status nk_sort_by_expert_out(const nk_sort_by_expert_args *args, nk_tensor specs[NK_SORT_OUTPUTS])
{
    nk_sort_by_expert_problem problem;
    nk_permutation outs;
    NK_TRY(check(args, &problem, &outs));
    specs[0] = outs.counts;
    specs[1] = outs.offsets;
    specs[2] = outs.sorted_rows;
    specs[3] = outs.row_of;
    return NK_OK;
}

nk_status nk_sort_by_expert(const nk_sort_by_expert_args *args, nk_exec *exec)
{
    nk_sort_by_expert_problem problem;
    nk_permutation specs;
    NK_TRY(check(args, &problem, &specs));
    NK_TRY(nk_check_list(args->counts, &specs.counts, exec, args->ids, &problem.counts));
    NK_TRY(nk_check_list(args->offsets, &specs.offsets, exec, args->ids, &problem.offsets));
    NK_TRY(nk_check_list(args->sorted_rows, &specs.sorted_rows, exec, args->ids, &problem.sorted_rows));
    NK_TRY(nk_check_list(args->row_of, &specs.row_of, exec, args->ids, &problem.row_of));
    const nk_tensor *all[] = {args->counts, args->offsets, args->sorted_rows,
                              args->row_of, args->ids,     args->expert_map};
    for (int i = 0; i < NK_SORT_OUTPUTS; i++) {
        if (all[i]) NK_TRY(nk_check_disjoint(all[i], all, sizeof all / sizeof all[0]));
    }
    NK_DISPATCH(sort_by_expert, &problem, exec, false);
}
