/* The checks of operands, their scales, alpha, bias and offsets. */
#include "op_check.h"

#include <inttypes.h>
#include <stdio.h>

static bool is_contiguous(const nk_tensor *t, int from_dim)
{
    int64_t expected = 1;
    if (nk_numel(t) == 0) return true;
    for (int d = t->ndim - 1; d >= from_dim; d--) {
        if (t->shape[d] > 1 && t->stride[d] != expected) return false;
        expected *= t->shape[d];
    }
    return true;
}

/* How many atoms a blocked buffer has along rows and along K. The competition's view calls them rest_m and rest_k. */
static int64_t atoms_of_rows(int64_t rows) { return nk_ceil_div(rows, NK_SF_ATOM_ROWS); }
static int64_t atoms_of_k(int64_t k) { return nk_ceil_div(k / NK_SF_VEC, NK_SF_ATOM_COLS); }

static nk_status bytes_of_atoms(const nk_tensor *t, int64_t rest_m, int64_t rest_k, int64_t *bytes)
{
    /* The sizes have been checked, so padding them does not overflow. */
    return nk_mul(rest_m * NK_SF_ATOM_ROWS, rest_k * NK_SF_ATOM_COLS, t, bytes);
}

nk_status nk_blocked_bytes(const nk_tensor *t, int64_t rows, int64_t k, int64_t *bytes)
{
    return bytes_of_atoms(t, atoms_of_rows(rows), atoms_of_k(k), bytes);
}

/* Whether `sf` is the competition's view [32, 4, rest_m, 4, rest_k(, L)] of blocked bytes. L may have any stride. */
static bool is_permuted_view(const nk_tensor *sf, int64_t rest_m, int64_t rest_k, int64_t l)
{
    const int64_t *shape = sf->shape, *stride = sf->stride;
    if (sf->ndim != 5 && sf->ndim != 6) return false;
    if (shape[0] != 32 || shape[1] != 4 || shape[2] != rest_m || shape[3] != 4 || shape[4] != rest_k) return false;
    if (l != (sf->ndim == 6 ? shape[5] : 1)) return false;
    bool in_place = stride[0] == 16 && stride[1] == 4 && stride[3] == 1 &&
                    (rest_m <= 1 || stride[2] == rest_k * NK_SF_ATOM_BYTES) &&
                    (rest_k <= 1 || stride[4] == NK_SF_ATOM_BYTES);
    return in_place || nk_numel(sf) == 0;
}

/* `sf` is a buffer of blocked bytes in their own order, with at least `bytes` for each batch. */
static NK_COLD nk_status check_blocked_buffer(const nk_tensor *sf, const nk_view *of, int64_t k, int64_t bytes,
                                              int64_t *batch_stride)
{
    if (sf->ndim == 3 && of->rank >= 3) { /* [L, padded rows, padded cols] */
        NK_CHECK_AT(sf->shape[0] == of->l && is_contiguous(sf, 1) && sf->shape[1] * sf->shape[2] >= bytes,
                    NK_VALUE_ERROR, sf,
                    "shape %s, expected blocked scales [%" PRId64 ", ..] with at least %" PRId64
                    " contiguous bytes in each batch",
                    nk_shape_text(sf).s, of->l, bytes);
        *batch_stride = sf->stride[0];
        return NK_OK;
    }
    if (sf->ndim > 3 && sf->ndim == of->rank) { /* [.., padded rows, padded cols], as quantize writes them */
        nk_view v;
        NK_TRY(nk_view_of(sf, "blocked scales", &v));
        if (nk_same_lead(&v, of) && is_contiguous(sf, sf->ndim - 2) && v.rows * v.cols >= bytes) {
            *batch_stride = v.batch_stride;
            return NK_OK;
        }
    }
    /* A permuted tensor is no byte buffer, even where it is contiguous. */
    bool natural =
        sf->ndim < 5 || (sf->shape[sf->ndim - 3] == 32 && sf->shape[sf->ndim - 2] == 4 && sf->shape[sf->ndim - 1] == 4);
    NK_CHECK_AT(natural && is_contiguous(sf, 0) && nk_numel(sf) >= bytes * of->l, NK_VALUE_ERROR, sf,
                "shape %s, expected blocked scales: a [32, 4, %" PRId64 ", 4, %" PRId64 ", %" PRId64
                "] view of them or a contiguous buffer of at least %" PRId64 " bytes",
                nk_shape_text(sf).s, atoms_of_rows(of->rows), atoms_of_k(k), of->l, bytes * of->l);
    *batch_stride = bytes;
    return NK_OK;
}

static nk_status check_blocked(const nk_tensor *sf, const nk_view *of, int64_t k, int64_t *batch_stride)
{
    const int64_t rest_m = atoms_of_rows(of->rows), rest_k = atoms_of_k(k);
    int64_t bytes, all;
    NK_TRY(bytes_of_atoms(sf, rest_m, rest_k, &bytes));
    NK_TRY(nk_mul(bytes, of->l, sf, &all));
    if (!is_permuted_view(sf, rest_m, rest_k, of->l)) return check_blocked_buffer(sf, of, k, bytes, batch_stride);
    *batch_stride = sf->ndim == 6 ? sf->stride[5] : 0;
    return NK_OK;
}

static NK_COLD nk_status check_linear(const nk_tensor *sf, const nk_view *of, int64_t k, int64_t *row_stride,
                                      int64_t *batch_stride)
{
    bool fits = sf->ndim == of->rank;
    if (fits) {
        nk_view v;
        NK_TRY(nk_view_of(sf, "[.., rows, K/16]", &v));
        fits = nk_same_lead(&v, of) && v.rows == of->rows && v.cols == k / NK_SF_VEC;
        NK_CHECK_AT(!fits || v.cols <= 1 || v.col_stride == 1, NK_VALUE_ERROR, sf,
                    "stride %" PRId64 " along K/16, expected 1, as after .contiguous()", v.col_stride);
        *row_stride = v.row_stride;
        *batch_stride = v.batch_stride;
    }
    if (fits) return NK_OK;
    nk_tensor expected;
    NK_TRY(nk_spec_matrix(sf->name, NK_E4M3, sf, of, of->rows, k / NK_SF_VEC, &expected));
    return nk_fail_at(NK_VALUE_ERROR, sf, "shape %s, expected %s for scale_layout 'linear'%s", nk_shape_text(sf).s,
                      nk_shape_text(&expected).s,
                      sf->ndim >= 5 && of->rank < 5 ? "; this looks like scale_layout='blocked'" : "");
}

nk_status nk_check_scales(const nk_tensor *sf, nk_sf_layout layout, const nk_view *of, int64_t k,
                          const nk_tensor *first, const uint8_t **data, int64_t *row_stride, int64_t *batch_stride)
{
    NK_TRY(nk_check_tensor(sf, NK_FP8, first));
    *data = sf->data;
    *row_stride = 0;
    return layout == NK_SF_BLOCKED ? check_blocked(sf, of, k, batch_stride)
                                   : check_linear(sf, of, k, row_stride, batch_stride);
}

nk_status nk_check_operand(const nk_tensor *t, const nk_tensor *sf, const char *sf_name, nk_sf_layout layout,
                           unsigned dtypes, const nk_tensor *first, nk_operand *operand, nk_view *v, int64_t *k)
{
    NK_TRY(nk_check_tensor(t, dtypes, first));
    bool fp4 = NK_FP4 & NK_DTYPE_BIT(t->dtype);
    NK_TRY(nk_view_of(t, fp4 ? "[.., K/2]" : "[.., K]", v));
    *k = v->cols * (fp4 ? 2 : 1);
    NK_CHECK_AT(*k % NK_SF_VEC == 0, NK_VALUE_ERROR, t, "shape %s is K = %" PRId64 ", expected a multiple of 16",
                nk_shape_text(t).s, *k);
    *operand = (nk_operand){
        .data = t->data,
        .dtype = fp4 ? NK_E2M1X2 : t->dtype,
        .sf_layout = layout,
        .row_stride = v->row_stride,
        .batch_stride = v->batch_stride,
        .k_stride = v->col_stride,
    };
    if (!fp4) {
        NK_CHECK_AT(!sf, NK_VALUE_ERROR, sf, "given, expected None for %s of dtype %s", t->name,
                    nk_dtype_name(t->dtype));
        return NK_OK;
    }
    NK_CHECK_AT(v->cols <= 1 || v->col_stride == 1, NK_VALUE_ERROR, t,
                "stride %" PRId64 " along K, expected 1, as after .contiguous()", v->col_stride);
    NK_CHECK(sf, NK_VALUE_ERROR, "%s: None, expected the scale factors of %s, since its dtype %s is that of codes",
             sf_name, t->name, nk_dtype_name(t->dtype));
    return nk_check_scales(sf, layout, v, *k, first, &operand->sf, &operand->sf_row_stride, &operand->sf_batch_stride);
}

nk_status nk_check_weights(const nk_tensor *t, const nk_tensor *sf, const char *sf_name, nk_sf_layout layout,
                           unsigned dtypes, const nk_tensor *first, const nk_view *like, const nk_tensor *like_t,
                           nk_operand *operand, nk_view *v, int64_t *k)
{
    const bool batched = t->ndim == 3;
    NK_CHECK_AT(t->ndim == 2 || (batched && like->rank == 3 && t->shape[0] == like->l), NK_VALUE_ERROR, t,
                "shape %s, expected [N, K%s], or [L, N, K%s] with the L of %s, which has shape %s", nk_shape_text(t).s,
                NK_FP4 & NK_DTYPE_BIT(t->dtype) ? "/2" : "", NK_FP4 & NK_DTYPE_BIT(t->dtype) ? "/2" : "", like_t->name,
                nk_shape_text(like_t).s);
    NK_TRY(nk_check_operand(t, sf, sf_name, layout, dtypes, first, operand, v, k));
    if (!batched) operand->batch_stride = operand->sf_batch_stride = 0;
    return NK_OK;
}

nk_status nk_check_float_rows(const nk_tensor *t, const char *what, const char *cols, const nk_tensor *first,
                              nk_operand *operand, nk_view *v)
{
    NK_TRY(nk_check_tensor(t, NK_FLOATS, first));
    NK_TRY(nk_rows_of(t, what, v));
    NK_CHECK_AT(v->cols <= 1 || v->col_stride == nk_dtype_size(t->dtype), NK_VALUE_ERROR, t,
                "stride %" PRId64 " along %s, expected 1, as after .contiguous()",
                v->col_stride / nk_dtype_size(t->dtype), cols);
    *operand = (nk_operand){
        .data = t->data, .dtype = t->dtype, .row_stride = v->row_stride, .k_stride = nk_dtype_size(t->dtype)};
    return NK_OK;
}

nk_status nk_check_k_innermost(const nk_tensor *t, const nk_operand *operand)
{
    int64_t size = nk_dtype_size(t->dtype);
    NK_CHECK_AT(t->shape[t->ndim - 1] <= 1 || operand->k_stride == size, NK_VALUE_ERROR, t,
                "stride %" PRId64 " along K, expected 1, as after .contiguous()", operand->k_stride / size);
    return NK_OK;
}

nk_status nk_check_same_k(const nk_tensor *t, int64_t k, const nk_tensor *like_t, int64_t like_k)
{
    NK_CHECK_AT(k == like_k, NK_VALUE_ERROR, t, "shape %s is K = %" PRId64 ", expected K = %" PRId64 " as in %s",
                nk_shape_text(t).s, k, like_k, like_t->name);
    return NK_OK;
}

nk_status nk_check_alpha(const nk_scalar *alpha, int64_t n, const nk_tensor *first, nk_alpha *checked)
{
    *checked = (nk_alpha){.value = alpha->value};
    const nk_tensor *t = alpha->tensor;
    if (!t) return NK_OK;
    NK_TRY(nk_check_tensor(t, NK_DTYPE_BIT(NK_F32), first));
    bool one = nk_numel(t) == 1;
    NK_CHECK_AT(one || (t->ndim == 1 && t->shape[0] == n), NK_VALUE_ERROR, t,
                "shape %s, expected one element or (%" PRId64 ",)", nk_shape_text(t).s, n);
    checked->data = t->data;
    checked->stride = one ? 0 : t->stride[0];
    return NK_OK;
}

nk_status nk_check_bias(const nk_tensor *bias, int64_t n, const nk_tensor *first, nk_bias *checked)
{
    *checked = (nk_bias){0};
    if (!bias) return NK_OK;
    NK_TRY(nk_check_tensor(bias, NK_FLOATS, first));
    NK_CHECK_AT(bias->ndim == 1 && bias->shape[0] == n, NK_VALUE_ERROR, bias, "shape %s, expected (%" PRId64 ",)",
                nk_shape_text(bias).s, n);
    *checked =
        (nk_bias){.data = bias->data, .dtype = bias->dtype, .stride = bias->stride[0] * nk_dtype_size(bias->dtype)};
    return NK_OK;
}

/* What `t` would be with a dimension of one element behind its last: rows of one column. */
static nk_tensor as_column(const nk_tensor *t)
{
    nk_tensor column = *t;
    column.shape[t->ndim] = column.stride[t->ndim] = 1;
    column.ndim++;
    return column;
}

nk_status nk_check_row_scale(const nk_tensor *t, const nk_tensor *tokens, const nk_view *like, const nk_tensor *first,
                             nk_row_scale *checked)
{
    *checked = (nk_row_scale){0};
    if (!t) return NK_OK;
    NK_TRY(nk_check_tensor(t, NK_DTYPE_BIT(NK_F32), first));
    checked->data = t->data;
    if (like->rank == 1) {
        NK_CHECK_AT(nk_numel(t) == 1, NK_VALUE_ERROR, t, "shape %s, expected one element", nk_shape_text(t).s);
        return NK_OK;
    }
    nk_tensor expected = *tokens;
    expected.ndim--;
    bool same = t->ndim == expected.ndim;
    for (int d = 0; same && d < t->ndim; d++)
        same = t->shape[d] == expected.shape[d];
    NK_CHECK_AT(same, NK_VALUE_ERROR, t, "shape %s, expected %s, one for each row of %s", nk_shape_text(t).s,
                nk_shape_text(&expected).s, tokens->name);
    const nk_tensor column = as_column(t);
    nk_view view;
    NK_TRY(nk_view_of(&column, "[.., M]", &view));
    checked->stride = view.row_stride / nk_dtype_size(NK_F32);
    checked->batch_stride = view.batch_stride / nk_dtype_size(NK_F32);
    return NK_OK;
}

nk_status nk_check_offsets(const nk_tensor *offsets, int64_t rows, const nk_tensor *first, int64_t *atoms)
{
    NK_TRY(nk_check_tensor(offsets, NK_DTYPE_BIT(NK_I32), first));
    NK_CHECK_AT(offsets->ndim == 1 && offsets->shape[0] >= 1, NK_VALUE_ERROR, offsets, "shape %s, expected [G + 1]",
                nk_shape_text(offsets).s);
    NK_CHECK_AT(offsets->shape[0] == 1 || offsets->stride[0] == 1, NK_VALUE_ERROR, offsets,
                "stride %" PRId64 ", expected 1, as after .contiguous()", offsets->stride[0]);
    *atoms = 0;
    if (offsets->device.type != NK_CPU) return NK_OK;
    const int32_t *at = offsets->data;
    for (int64_t g = 0; g + 1 < offsets->shape[0]; g++) {
        NK_CHECK_AT(at[g] >= 0 && at[g] <= at[g + 1] && at[g + 1] <= rows, NK_VALUE_ERROR, offsets,
                    "expert %" PRId64 " has rows %" PRId32 " to %" PRId32
                    ", expected them to rise from 0 to at most %" PRId64,
                    g, at[g], at[g + 1], rows);
        *atoms += nk_ceil_div(at[g + 1] - at[g], NK_SF_ATOM_ROWS);
    }
    return NK_OK;
}
