/* Tensors as batches of matrices: which dimensions are rows, which count as L, and when several count as one. */
#include "op_check.h"

#include <inttypes.h>

/* Dimensions 0 to end - 1 of `t` as one of *extent elements, *stride apart. It takes one step from the end of an inner
 * dimension to the next of an outer one. */
static NK_COLD nk_status merge(const nk_tensor *t, int end, int64_t *extent, int64_t *stride)
{
    *extent = 1;
    *stride = 0;
    for (int d = end - 1; d >= 0; d--) {
        int64_t step;
        if (t->shape[d] == 1) continue;
        bool first = *extent == 1, empty = *extent == 0 || t->shape[d] == 0;
        bool merges = first || empty || (!__builtin_mul_overflow(*extent, *stride, &step) && step == t->stride[d]);
        NK_CHECK_AT(merges, NK_VALUE_ERROR, t,
                    "shape %s with strides %s, expected dimensions 0 to %d to merge into one without a copy, as after "
                    ".contiguous()",
                    nk_shape_text(t).s, nk_stride_text(t).s, end - 1);
        if (first) *stride = t->stride[d];
        NK_TRY(nk_mul(*extent, t->shape[d], t, extent));
    }
    return NK_OK;
}

static NK_COLD void explain_scalar(const nk_tensor *t, const char *what)
{
    nk_fail_at(NK_VALUE_ERROR, t, "shape (), expected %s", what);
}

/* For ranks from 4 on: l and the batch stride, which the view lacks so far. */
static NK_COLD nk_status merge_lead(const nk_tensor *t, nk_view *v)
{
    NK_TRY(merge(t, v->rank - 2, &v->l, &v->batch_stride));
    v->batch_stride *= nk_dtype_size(t->dtype);
    return NK_OK;
}

nk_status nk_view_of(const nk_tensor *t, const char *what, nk_view *v)
{
    const int rank = t->ndim;
    const int64_t size = nk_dtype_size(t->dtype);
    if (rank < 1) {
        explain_scalar(t, what);
        return NK_VALUE_ERROR; /* a constant: so gcc knows that v is set wherever it is used */
    }
    v->rank = rank;
    v->lead = t->shape;
    v->l = rank == 3 ? t->shape[0] : 1;
    v->rows = rank > 1 ? t->shape[rank - 2] : 1;
    v->cols = t->shape[rank - 1];
    v->batch_stride = rank == 3 ? t->stride[0] * size : 0;
    v->row_stride = rank > 1 ? t->stride[rank - 2] * size : 0;
    v->col_stride = t->stride[rank - 1] * size;
    return rank > 3 ? merge_lead(t, v) : NK_OK;
}

nk_status nk_rows_of(const nk_tensor *t, const char *what, nk_view *v)
{
    const int rank = t->ndim;
    const int64_t size = nk_dtype_size(t->dtype);
    if (rank < 1) {
        explain_scalar(t, what);
        return NK_VALUE_ERROR;
    }
    *v = (nk_view){.rank = rank, .lead = t->shape, .l = 1, .cols = t->shape[rank - 1]};
    NK_TRY(merge(t, rank - 1, &v->rows, &v->row_stride));
    v->row_stride *= size;
    v->col_stride = t->stride[rank - 1] * size;
    return NK_OK;
}

bool nk_same_lead(const nk_view *x, const nk_view *y)
{
    if (x->rank != y->rank) return false;
    for (int d = 0; d + 2 < x->rank; d++)
        if (x->lead[d] != y->lead[d]) return false;
    return true;
}
