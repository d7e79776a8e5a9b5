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

static nk_status check(const nk_relayout_args *args, nk_relayout_problem *p, nk_view *v, nk_tensor *spec)
{
    NK_TRY(nk_check_tensor(args->in, NK_FP8, args->in));
    NK_TRY(linear_view(args, v));
    *p = (nk_relayout_problem){.device = args->in->device, .to = args->to, .l = v->l, .rows = v->rows, .cols = v->cols};
    bool blocked = args->to == NK_SF_BLOCKED;
    return nk_spec_matrix("out", args->in->dtype, args->in, v, blocked ? nk_sf_padded_rows(v->rows) : v->rows,
                          blocked ? nk_sf_padded_cols(v->cols) : v->cols, spec);
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
    const nk_tensor *linear = args->to == NK_SF_LINEAR ? out : args->in;
    const nk_tensor *blocked = args->to == NK_SF_LINEAR ? args->in : out;
    const uint8_t *data;
    int64_t none;
    NK_TRY(nk_check_scales(linear, NK_SF_LINEAR, &v, v.cols * NK_SF_VEC, args->in, &data, &p.linear_row_stride,
                           &p.linear_batch_stride));
    NK_TRY(nk_check_scales(blocked, NK_SF_BLOCKED, &v, v.cols * NK_SF_VEC, args->in, &data, &none,
                           &p.blocked_batch_stride));
    if (args->out) {
        NK_TRY(nk_check_writable(out));
        NK_TRY(nk_check_disjoint(out, &args->in, 1));
    }
    p.linear = linear->data;
    p.blocked = blocked->data;
    NK_DISPATCH(relayout, &p, exec, nk_numel(&spec) == 0);
}
