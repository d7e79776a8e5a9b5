/* combine: checks its arguments and dispatches. */
#include "op_check.h"

#include "backend.h"

#include <inttypes.h>

/* Every number names a row of the products, or is -1. Each is read once, since another thread may write them. */
static NK_COLD nk_status check_numbers(const nk_tensor *row_of, const nk_combine_problem *p)
{
    for (int64_t i = 0; i < p->m * p->k; i++) {
        const int32_t row = __atomic_load_n(&p->row_of[i], __ATOMIC_RELAXED);
        NK_CHECK_AT(row == -1 || nk_row_among(row, p->rows) >= 0, NK_VALUE_ERROR, row_of,
                    "row %" PRId64 " is %" PRId32 ", expected -1 or one of the %" PRId64 " rows of products", i, row,
                    p->rows);
    }
    return NK_OK;
}

static nk_status check_row_of(const nk_tensor *row_of, const nk_tensor *first, nk_combine_problem *p)
{
    const int64_t selections = p->m * p->k; /* the elements of weights: its sizes have passed */
    NK_TRY(nk_check_tensor(row_of, NK_DTYPE_BIT(NK_I32), first));
    NK_CHECK_AT(row_of->ndim == 1 && row_of->shape[0] == selections, NK_VALUE_ERROR, row_of,
                "shape %s, expected (%" PRId64 ",): a number for each of the %" PRId64 " x %" PRId64 " weights",
                nk_shape_text(row_of).s, selections, p->m, p->k);
    NK_CHECK_AT(selections <= 1 || row_of->stride[0] == 1, NK_VALUE_ERROR, row_of,
                "stride %" PRId64 ", expected 1, as after .contiguous()", row_of->stride[0]);
    p->row_of = row_of->data;
    return p->device.type == NK_CPU ? check_numbers(row_of, p) : NK_OK;
}

/* It has the shape of the result. */
static nk_status check_residual(const nk_tensor *residual, const nk_tensor *spec, const nk_tensor *first,
                                nk_combine_problem *p)
{
    nk_view v;
    NK_TRY(nk_check_float_rows(residual, "[.., H]", "H", first, &p->residual, &v));
    bool same = residual->ndim == spec->ndim;
    for (int d = 0; same && d < spec->ndim; d++)
        same = residual->shape[d] == spec->shape[d];
    NK_CHECK_AT(same, NK_VALUE_ERROR, residual, "shape %s, expected %s", nk_shape_text(residual).s,
                nk_shape_text(spec).s);
    return NK_OK;
}

static nk_status check(const nk_combine_args *args, nk_combine_problem *p, nk_tensor *spec)
{
    const nk_tensor *products = args->products, *weights = args->weights;
    nk_view v;
    *p = (nk_combine_problem){.device = products->device};
    NK_CHECK_AT(products->ndim == 2, NK_VALUE_ERROR, products, "shape %s, expected [P, H]", nk_shape_text(products).s);
    NK_TRY(nk_check_float_rows(products, "[P, H]", "H", products, &p->products, &v));
    p->rows = v.rows;
    p->h = v.cols;
    NK_TRY(nk_check_float_rows(weights, "[.., k]", "k", products, &p->weights, &v));
    p->m = v.rows;
    p->k = v.cols;
    NK_TRY(check_row_of(args->row_of, products, p));
    NK_TRY(nk_spec_rows("out", nk_result_dtype(args->out_dtype, products), weights, p->m, p->h, spec));
    return args->residual ? check_residual(args->residual, spec, products, p) : NK_OK;
}

nk_status nk_combine_out(const nk_combine_args *args, nk_tensor *spec)
{
    nk_combine_problem problem;
    return check(args, &problem, spec);
}

nk_status nk_combine(const nk_combine_args *args, nk_exec *exec)
{
    nk_combine_problem problem;
    nk_tensor spec;
    NK_TRY(check(args, &problem, &spec));
    NK_TRY(nk_check_out_rows(args->out, &spec, NK_FLOATS, exec, args->products, &problem.out));
    if (args->out) {
        const nk_tensor *inputs[] = {args->products, args->row_of, args->weights, args->residual};
        NK_TRY(nk_check_disjoint(args->out, inputs, sizeof inputs / sizeof inputs[0]));
    }
    NK_DISPATCH(combine, &problem, exec, nk_numel(&spec) == 0);
}
