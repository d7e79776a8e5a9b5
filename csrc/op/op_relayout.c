/* to_blocked and from_blocked: check their arguments and dispatch. */
#include "op_check.h"

#include "backend.h"

#include <inttypes.h>

/* A view of the linear scales. To blocked they are `in`. From blocked `rows`, `cols` and the batch of `in` say it. */
static nk_status linear_view(const nk_relayout_args *args, nk_view *v)
{
    const nk_tensor *in = args->in;
    if (args->to == NK_SF_BLOCKED) {
        NK_CHECK_AT(in->ndim == 2 || in->ndim == 3, NK_VALUE_ERROR, in,
                    "shape %s, expected [rows, K/16] with or without a batch L", nk_shape_text(in).s);
        return nk_view_of(in, "[rows, K/16]", v);
    }
    NK_CHECK(args->rows >= 0 && args->rows < INT64_MAX / 256, NK_VALUE_ERROR,
             "rows: %" PRId64 ", expected a size from 0 that does not overflow", args->rows);
    NK_CHECK(args->cols >= 0 && args->cols < INT64_MAX / 256, NK_VALUE_ERROR,
             "cols: %" PRId64 ", expected a size from 0 that does not overflow", args->cols);
    bool permuted = in->ndim == 6 && in->shape[0] == 32 && in->shape[1] == 4 && in->shape[3] == 4;
    bool batched = in->ndim == 3 || in->ndim == 6;
    const int64_t *lead = &in->shape[permuted ? 5 : 0];
    *v = (nk_view){
        .rank = batched ? 3 : 2,
        .lead = lead,
        .l = batched ? *lead : 1,
        .rows = args->rows,
        .cols = args->cols,
    };
    return NK_OK;
}

/* The scale factors of one side of the move. */
static nk_status check_side(const nk_tensor *sf, nk_sf_layout layout, const nk_view *v, const nk_tensor *first,
                            nk_relayout_problem *p)
{
    const bool linear = layout == NK_SF_LINEAR;
    const uint8_t *data;
    int64_t row_stride, batch_stride;
    NK_TRY(nk_check_scales(sf, layout, v, v->cols * NK_SF_VEC, first, &data, &row_stride, &batch_stride));
    if (linear) p->linear_row_stride = row_stride;
    *(linear ? &p->linear_batch_stride : &p->blocked_batch_stride) = batch_stride;
    *(linear ? &p->linear : &p->blocked) = sf->data;
    return NK_OK;
}

/* `in` is checked whole: an output of a size that it cannot have would be allocated for nothing. */
static nk_status check(const nk_relayout_args *args, nk_relayout_problem *p, nk_view *v, nk_tensor *spec)
{
    const nk_tensor *in = args->in;
    const bool to_blocked = args->to == NK_SF_BLOCKED;
    NK_TRY(linear_view(args, v));
    *p = (nk_relayout_problem){.device = in->device, .to = args->to, .l = v->l, .rows = v->rows, .cols = v->cols};
    NK_TRY(check_side(in, to_blocked ? NK_SF_LINEAR : NK_SF_BLOCKED, v, in, p));
    return nk_spec_matrix("out", in->dtype, in, v, to_blocked ? nk_sf_padded_rows(v->rows) : v->rows,
                          to_blocked ? nk_sf_padded_cols(v->cols) : v->cols, spec);
}

nk_status nk_relayout_out(const nk_relayout_args *args, nk_tensor *spec)
{
    nk_relayout_problem problem;
    nk_view v;
    return check(args, &problem, &v, spec);
}

nk_status nk_relayout(const nk_relayout_args *args, nk_exec *exec)
{
    nk_relayout_problem p;
    nk_view v;
    nk_tensor spec;
    NK_TRY(check(args, &p, &v, &spec));
    const nk_tensor *out = args->out;
    if (!out) NK_TRY(nk_check_out(&out, &spec, NK_FP8, exec, args->in));
    NK_TRY(check_side(out, args->to, &v, args->in, &p));
    if (args->out) {
        NK_TRY(nk_check_writable(out));
        NK_TRY(nk_check_disjoint(out, &args->in, 1));
    }
    NK_DISPATCH(relayout, &p, exec, nk_numel(&spec) == 0);
}
