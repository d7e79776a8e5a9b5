/* route: checks its arguments and dispatches. */
#include "op_check.h"

#include "backend.h"

#include <inttypes.h>

typedef struct outputs {
    nk_tensor spec[NK_ROUTE_OUTPUTS]; /* weights, ids, counts, offsets, sorted_rows */
    int count;
} outputs;

static nk_status check(const nk_route_args *args, nk_route_problem *p, outputs *outs)
{
    nk_view x, w, rows_of_x;
    int64_t k;
    const nk_tensor *first = args->x, *bias = args->correction_bias;
    *p = (nk_route_problem){.device = first->device};
    NK_CHECK_AT(args->w->ndim == 2, NK_VALUE_ERROR, args->w, "shape %s, expected [N, K]", nk_shape_text(args->w).s);
    NK_TRY(nk_check_operand(first, NULL, "", NK_SF_LINEAR, NK_HALVES, first, &p->x, &x, &p->k));
    NK_TRY(nk_check_operand(args->w, NULL, "", NK_SF_LINEAR, NK_DTYPE_BIT(first->dtype), first, &p->w, &w, &k));
    NK_TRY(nk_rows_of(first, "[.., K]", &rows_of_x));
    p->x.row_stride = rows_of_x.row_stride;
    p->x.batch_stride = 0;
    NK_TRY(nk_check_k_innermost(first, &p->x));
    NK_TRY(nk_check_k_innermost(args->w, &p->w));
    NK_TRY(nk_check_same_k(args->w, k, first, p->k));
    p->m = rows_of_x.rows;
    p->n = w.rows;
    NK_TRY(nk_check_alpha(&args->alpha, p->n, first, &p->alpha));

    NK_CHECK_AT(p->n <= NK_MAX_EXPERTS, NK_VALUE_ERROR, args->w, "shape %s is %" PRId64 " experts, expected at most %d",
                nk_shape_text(args->w).s, p->n, NK_MAX_EXPERTS);
    NK_CHECK(args->k >= 1 && args->k <= NK_MAX_TOP_K && args->k <= p->n, NK_VALUE_ERROR,
             "k: %" PRId64 ", expected 1 to %" PRId64 " (w has %" PRId64 " experts, and at most %d are chosen)",
             args->k, p->n < NK_MAX_TOP_K ? p->n : (int64_t)NK_MAX_TOP_K, p->n, NK_MAX_TOP_K);
    NK_CHECK(args->n_group >= 1 && p->n % args->n_group == 0, NK_VALUE_ERROR,
             "n_group: %" PRId64 ", expected a divisor of the %" PRId64 " experts of w", args->n_group, p->n);
    NK_CHECK(args->topk_group >= 1 && args->topk_group <= args->n_group, NK_VALUE_ERROR,
             "topk_group: %" PRId64 ", expected 1 to n_group = %" PRId64, args->topk_group, args->n_group);
    NK_CHECK(args->k <= args->topk_group * (p->n / args->n_group), NK_VALUE_ERROR,
             "k: %" PRId64 ", expected at most the %" PRId64 " experts in topk_group = %" PRId64 " groups", args->k,
             args->topk_group * (p->n / args->n_group), args->topk_group);
    p->top_k = args->k;
    p->n_group = args->n_group;
    p->topk_group = args->topk_group;
    p->score = args->score;
    p->renormalize = args->renormalize;
    p->dense = args->dense;
    p->scaling_factor = args->scaling_factor;
    if (bias) {
        NK_CHECK_AT(args->score == NK_SIGMOID, NK_VALUE_ERROR, bias, "given, expected None unless score='sigmoid'");
        NK_TRY(nk_check_tensor(bias, NK_DTYPE_BIT(NK_F32), first));
        NK_CHECK_AT(bias->ndim == 1 && bias->shape[0] == p->n, NK_VALUE_ERROR, bias,
                    "shape %s, expected (%" PRId64 ",)", nk_shape_text(bias).s, p->n);
        p->correction_bias = bias->data;
        p->correction_bias_stride = bias->stride[0];
    }

    int64_t rows;
    NK_TRY(nk_mul(p->m, args->k, first, &rows));
    NK_CHECK_AT(!args->permutation || rows <= INT32_MAX, NK_VALUE_ERROR, first,
                "shape %s, expected M * k to fit int32 when a permutation is asked for", nk_shape_text(first).s);
    NK_TRY(nk_spec_matrix("weights", args->out_dtype, first, &x, x.rows, args->dense ? p->n : args->k, &outs->spec[0]));
    NK_TRY(nk_spec_matrix("ids", NK_I32, first, &x, x.rows, args->k, &outs->spec[1]));
    outs->spec[2] = nk_spec("counts", NK_I32, first->device, 1, (int64_t[]){p->n});
    outs->spec[3] = nk_spec("offsets", NK_I32, first->device, 1, (int64_t[]){p->n + 1});
    outs->spec[4] = nk_spec("sorted_rows", NK_I32, first->device, 1, &rows);
    outs->count = args->permutation ? 5 : 2;
    return NK_OK;
}

nk_status nk_route_out(const nk_route_args *args, nk_tensor specs[NK_ROUTE_OUTPUTS], int *count)
{
    nk_route_problem problem;
    outputs outs;
    NK_TRY(check(args, &problem, &outs));
    for (int i = 0; i < outs.count; i++)
        specs[i] = outs.spec[i];
    *count = outs.count;
    return NK_OK;
}

nk_status nk_route(const nk_route_args *args, nk_exec *exec)
{
    nk_route_problem problem;
    outputs outs;
    NK_TRY(check(args, &problem, &outs));
    NK_TRY(nk_check_out_rows(args->weights, &outs.spec[0], exec, args->x, &problem.weights));
    const nk_tensor *ints[] = {args->ids, args->counts, args->offsets, args->sorted_rows};
    for (int i = 0; i < outs.count - 1; i++) {
        NK_TRY(nk_check_out(&ints[i], &outs.spec[1 + i], NK_DTYPE_BIT(NK_I32), exec, args->x));
        NK_CHECK_AT(i == 0 || ints[i]->shape[0] <= 1 || ints[i]->stride[0] == 1, NK_VALUE_ERROR, ints[i],
                    "stride %" PRId64 ", expected 1, as after .contiguous()", ints[i]->stride[0]);
    }
    nk_view ids;
    NK_TRY(nk_rows_of(ints[0], "[.., k]", &ids));
    problem.ids = ints[0]->data;
    problem.ids_row_stride = ids.row_stride / nk_dtype_size(NK_I32);
    problem.ids_col_stride = ids.col_stride / nk_dtype_size(NK_I32);
    if (args->permutation) {
        problem.counts = ints[1]->data;
        problem.offsets = ints[2]->data;
        problem.sorted_rows = ints[3]->data;
    }
    const nk_tensor *all[] = {args->weights, args->ids, args->counts,          args->offsets,     args->sorted_rows,
                              args->x,       args->w,   args->correction_bias, args->alpha.tensor};
    for (int i = 0; i < outs.count; i++) {
        if (all[i]) NK_TRY(nk_check_disjoint(all[i], all, sizeof all / sizeof all[0]));
    }
    NK_DISPATCH(route, &problem, exec, problem.m == 0 && !args->permutation);
}
