/* route: checks its arguments and dispatches. */
#include "op_route.h"

#include "backend.h"

#include <inttypes.h>

typedef struct route_outputs {
    nk_tensor weights, ids, logits;
    nk_permutation permutation;
} route_outputs;

/* The operands: x and w, or the logits in their place. */
static nk_status check_operands(const nk_route_args *args, nk_route_problem *p)
{
    nk_view v;
    if (args->logits) {
        NK_CHECK_AT(!args->x, NK_VALUE_ERROR, args->x, "given, expected None where logits are given");
        NK_CHECK_AT(!args->w, NK_VALUE_ERROR, args->w, "given, expected None where logits are given");
        NK_TRY(nk_check_float_rows(args->logits, "[.., N]", "N", args->logits, &p->logits, &v));
        p->from_logits = true;
        p->m = v.rows;
        p->n = v.cols;
        return NK_OK;
    }
    NK_CHECK(args->x, NK_TYPE_ERROR, "x: None, expected a tensor, or logits in place of x and w");
    NK_CHECK(args->w, NK_TYPE_ERROR, "w: None, expected a tensor");
    NK_CHECK_AT(args->w->ndim == 2, NK_VALUE_ERROR, args->w, "shape %s, expected [N, K]", nk_shape_text(args->w).s);
    NK_TRY(nk_check_float_rows(args->x, "[.., K]", "K", args->x, &p->x, &v));
    p->m = v.rows;
    p->k = v.cols;
    NK_TRY(nk_check_float_rows(args->w, "[N, K]", "K", args->x, &p->w, &v));
    NK_TRY(nk_check_same_k(args->w, v.cols, args->x, p->k));
    p->n = v.rows;
    return NK_OK;
}

/* A number for each expert, fp32 [N], or NULL: *data and *stride stay as they are. */
static nk_status check_per_expert(const nk_tensor *t, const nk_tensor *first, int64_t experts, const float **data,
                                  int64_t *stride)
{
    if (!t) return NK_OK;
    NK_TRY(nk_check_tensor(t, NK_DTYPE_BIT(NK_F32), first));
    NK_CHECK_AT(t->ndim == 1 && t->shape[0] == experts, NK_VALUE_ERROR, t, "shape %s, expected (%" PRId64 ",)",
                nk_shape_text(t).s, experts);
    *data = t->data;
    *stride = t->stride[0];
    return NK_OK;
}

/* How experts are selected and weighed. `experts` is the tensor that says how many there are. */
static nk_status check_selection(const nk_route_args *args, const nk_tensor *experts, const nk_tensor *first,
                                 nk_route_problem *p)
{
    NK_CHECK_AT(p->n <= NK_MAX_EXPERTS, NK_VALUE_ERROR, experts, "shape %s is %" PRId64 " experts, expected at most %d",
                nk_shape_text(experts).s, p->n, NK_MAX_EXPERTS);
    NK_CHECK(args->k >= 1 && args->k <= NK_MAX_TOP_K && args->k <= p->n, NK_VALUE_ERROR,
             "k: %" PRId64 ", expected 1 to %" PRId64 " (%s has %" PRId64 " experts, and at most %d are chosen)",
             args->k, p->n < NK_MAX_TOP_K ? p->n : (int64_t)NK_MAX_TOP_K, experts->name, p->n, NK_MAX_TOP_K);
    NK_CHECK(args->n_group >= 1 && p->n % args->n_group == 0, NK_VALUE_ERROR,
             "n_group: %" PRId64 ", expected a divisor of the %" PRId64 " experts of %s", args->n_group, p->n,
             experts->name);
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
    p->returns_logits = args->return_logits;
    NK_TRY(nk_check_alpha(&args->alpha, p->n, first, &p->alpha));
    NK_TRY(check_per_expert(args->correction_bias, first, p->n, &p->correction_bias, &p->correction_bias_stride));
    return check_per_expert(args->per_expert_scale, first, p->n, &p->per_expert_scale, &p->per_expert_scale_stride);
}

nk_status nk_check_expert_map(const nk_tensor *map, int64_t num_local_experts, const nk_tensor *first,
                              nk_route_problem *p)
{
    p->local_experts = p->n;
    if (!map) return NK_OK;
    NK_TRY(nk_check_tensor(map, NK_DTYPE_BIT(NK_I32), first));
    NK_CHECK_AT(map->ndim == 1 && map->shape[0] == p->n, NK_VALUE_ERROR, map, "shape %s, expected (%" PRId64 ",)",
                nk_shape_text(map).s, p->n);
    NK_CHECK(num_local_experts >= 0 && num_local_experts <= NK_MAX_EXPERTS, NK_VALUE_ERROR,
             "num_local_experts: %" PRId64 ", expected 0 to %d", num_local_experts, NK_MAX_EXPERTS);
    p->expert_map = map->data;
    p->expert_map_stride = map->stride[0];
    p->local_experts = num_local_experts;
    return NK_OK;
}

static nk_status check_permutation(const nk_route_args *args, const nk_tensor *first, nk_route_problem *p)
{
    NK_CHECK(args->permutation || !args->return_row_of, NK_VALUE_ERROR,
             "return_row_of: True, expected False unless permutation=True");
    if (args->expert_map)
        NK_CHECK_AT(args->permutation, NK_VALUE_ERROR, args->expert_map,
                    "given, expected None unless permutation=True");
    p->sorts = args->permutation;
    return nk_check_expert_map(args->expert_map, args->num_local_experts, first, p);
}

nk_status nk_spec_permutation(const nk_tensor *first, const nk_route_problem *p, nk_permutation *specs)
{
    int64_t rows;
    NK_TRY(nk_mul(p->m, p->top_k, first, &rows));
    NK_CHECK_AT(!p->sorts || rows <= INT32_MAX, NK_VALUE_ERROR, first,
                "shape %s, expected M * k to fit int32 when a permutation is asked for", nk_shape_text(first).s);
    specs->counts = nk_spec("counts", NK_I32, first->device, 1, &p->local_experts);
    specs->offsets = nk_spec("offsets", NK_I32, first->device, 1, (int64_t[]){p->local_experts + 1});
    specs->sorted_rows = nk_spec("sorted_rows", NK_I32, first->device, 1, &rows);
    specs->row_of = nk_spec("row_of", NK_I32, first->device, 1, &rows);
    return NK_OK;
}

static nk_status specify(const nk_route_args *args, const nk_tensor *first, const nk_route_problem *p,
                         route_outputs *outs)
{
    NK_TRY(nk_spec_permutation(first, p, &outs->permutation));
    NK_TRY(nk_spec_rows("weights", args->out_dtype, first, p->m, args->dense ? p->n : args->k, &outs->weights));
    NK_TRY(nk_spec_rows("ids", NK_I32, first, p->m, args->k, &outs->ids));
    if (args->return_logits) NK_TRY(nk_spec_rows("logits", NK_F32, first, p->m, p->n, &outs->logits));
    return NK_OK;
}

/* *first becomes the tensor whose device and shape the others follow. */
static nk_status check(const nk_route_args *args, const nk_tensor **first, nk_route_problem *p, route_outputs *outs)
{
    *p = (nk_route_problem){0};
    NK_TRY(check_operands(args, p));
    *first = args->logits ? args->logits : args->x;
    p->device = (*first)->device;
    NK_TRY(check_selection(args, args->logits ? args->logits : args->w, *first, p));
    NK_TRY(check_permutation(args, *first, p));
    return specify(args, *first, p, outs);
}

nk_status nk_route_out(const nk_route_args *args, nk_tensor specs[NK_ROUTE_OUTPUTS], int *count)
{
    const nk_tensor *first;
    nk_route_problem problem;
    route_outputs outs;
    NK_TRY(check(args, &first, &problem, &outs));
    *count = 0;
    specs[(*count)++] = outs.weights;
    specs[(*count)++] = outs.ids;
    if (args->permutation) {
        specs[(*count)++] = outs.permutation.counts;
        specs[(*count)++] = outs.permutation.offsets;
        specs[(*count)++] = outs.permutation.sorted_rows;
        if (args->return_row_of) specs[(*count)++] = outs.permutation.row_of;
    }
    if (args->return_logits) specs[(*count)++] = outs.logits;
    return NK_OK;
}

nk_status nk_check_list(const nk_tensor *out, const nk_tensor *spec, const nk_exec *exec, const nk_tensor *first,
                        int32_t **data)
{
    NK_TRY(nk_check_out(&out, spec, NK_DTYPE_BIT(NK_I32), exec, first));
    NK_CHECK_AT(out->shape[0] <= 1 || out->stride[0] == 1, NK_VALUE_ERROR, out,
                "stride %" PRId64 ", expected 1, as after .contiguous()", out->stride[0]);
    *data = out->data;
    return NK_OK;
}

nk_status nk_route(const nk_route_args *args, nk_exec *exec)
{
    const nk_tensor *first, *ids = args->ids;
    nk_route_problem problem;
    route_outputs outs;
    nk_view view;
    NK_TRY(check(args, &first, &problem, &outs));
    NK_TRY(nk_check_out_rows(args->weights, &outs.weights, NK_FLOATS, exec, first, &problem.weights));
    NK_TRY(nk_check_out(&ids, &outs.ids, NK_DTYPE_BIT(NK_I32), exec, first));
    NK_TRY(nk_rows_of(ids, "[.., k]", &view));
    problem.ids = ids->data;
    problem.ids_row_stride = view.row_stride / nk_dtype_size(NK_I32);
    problem.ids_col_stride = view.col_stride / nk_dtype_size(NK_I32);
    if (args->permutation) {
        NK_TRY(nk_check_list(args->counts, &outs.permutation.counts, exec, first, &problem.counts));
        NK_TRY(nk_check_list(args->offsets, &outs.permutation.offsets, exec, first, &problem.offsets));
        NK_TRY(nk_check_list(args->sorted_rows, &outs.permutation.sorted_rows, exec, first, &problem.sorted_rows));
    }
    if (args->return_row_of)
        NK_TRY(nk_check_list(args->row_of, &outs.permutation.row_of, exec, first, &problem.row_of));
    if (args->return_logits) {
        NK_TRY(
            nk_check_out_rows(args->logits_out, &outs.logits, NK_DTYPE_BIT(NK_F32), exec, first, &problem.logits_out));
    }
    const nk_tensor *all[] = {
        args->weights,      args->ids,       args->counts, args->offsets, args->sorted_rows,     args->row_of,
        args->logits_out,   args->x,         args->w,      args->logits,  args->correction_bias, args->per_expert_scale,
        args->alpha.tensor, args->expert_map};
    for (int i = 0; i < NK_ROUTE_OUTPUTS; i++) {
        if (all[i]) NK_TRY(nk_check_disjoint(all[i], all, sizeof all / sizeof all[0]));
    }
    NK_DISPATCH(route, &problem, exec, problem.m == 0 && !args->permutation);
}
