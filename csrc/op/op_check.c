#include "op_check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------------------- */
/* Messages                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

nk_status nk_fail_at(nk_status status, const nk_tensor *t, const char *format, ...)
{
    char text[384];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (t->index < 0) return nk_fail(status, "%s: %s", t->name, text);
    return nk_fail(status, "%s[%" PRId32 "]: %s", t->name, t->index, text);
}

nk_text nk_shape_text(const nk_tensor *t)
{
    nk_text text = {"("};
    size_t at = 1;
    for (int d = 0; d < t->ndim && at < sizeof text.s; d++) {
        at += (size_t)snprintf(text.s + at, sizeof text.s - at, "%s%" PRId64, d ? ", " : "", t->shape[d]);
    }
    if (at < sizeof text.s) snprintf(text.s + at, sizeof text.s - at, "%s)", t->ndim == 1 ? "," : "");
    return text;
}

static const char *const dtype_names[] = {
    [NK_U8] = "uint8",    [NK_E2M1X2] = "float4_e2m1fn_x2", [NK_E4M3] = "float8_e4m3fn",
    [NK_F16] = "float16", [NK_BF16] = "bfloat16",           [NK_F32] = "float32",
    [NK_I32] = "int32",
};
#define DTYPES ((int)(sizeof dtype_names / sizeof dtype_names[0]))

const char *nk_dtype_name(nk_dtype dtype) { return dtype_names[dtype]; }

static nk_text dtypes_text(unsigned dtypes)
{
    nk_text text = {""};
    for (int d = 0; d < DTYPES; d++) {
        if (!(dtypes & NK_DTYPE_BIT(d))) continue;
        size_t at = strlen(text.s);
        snprintf(text.s + at, sizeof text.s - at, "%s%s", at ? " or " : "", dtype_names[d]);
    }
    return text;
}

static nk_text device_text(nk_device device)
{
    nk_text text;
    if (device.type == NK_CPU)
        snprintf(text.s, sizeof text.s, "cpu");
    else
        snprintf(text.s, sizeof text.s, "cuda:%" PRId32, device.index);
    return text;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Any tensor                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

nk_status nk_mul(int64_t x, int64_t y, const nk_tensor *t, int64_t *product)
{
    NK_CHECK_AT(!__builtin_mul_overflow(x, y, product), NK_VALUE_ERROR, t,
                "sizes %" PRId64 " x %" PRId64 " overflow 64-bit arithmetic", x, y);
    return NK_OK;
}

int64_t nk_numel(const nk_tensor *t)
{
    int64_t numel = 1;
    for (int d = 0; d < t->ndim; d++)
        numel *= t->shape[d];
    return numel;
}

static int bits_of(uint64_t x) { return 64 - __builtin_clzll(x | 1); }

/* Whether no number made of sizes and strides comes near 64 bits. Most tensors are such, which takes a glance. */
static bool is_small(const nk_tensor *t)
{
    uint64_t sizes = 0, strides = 0;
    for (int d = 0; d < t->ndim; d++) {
        sizes |= (uint64_t)t->shape[d]; /* one that is negative has 64 bits */
        strides |= (uint64_t)t->stride[d];
    }
    return t->ndim * bits_of(sizes) <= 54 && bits_of(sizes) + bits_of(strides) <= 54;
}

/* That bytes, and offsets of bytes from the first element, can be counted in 64 bits. */
static nk_status check_sizes(const nk_tensor *t)
{
    if (is_small(t)) return NK_OK;
    bool empty = false, overflow = false;
    const int64_t size = nk_dtype_size(t->dtype);
    int64_t before = 0, after = 0, numel = size, low, high; /* before, after: in elements */
    for (int d = 0; d < t->ndim; d++) {
        int64_t reach;
        if (t->shape[d] == 1) continue;
        NK_CHECK_AT((uint64_t)t->shape[d] < INT64_MAX / 256, NK_VALUE_ERROR, t,
                    "shape %s, its sizes overflow 64-bit arithmetic or are negative", nk_shape_text(t).s);
        empty |= t->shape[d] == 0;
        overflow |= __builtin_mul_overflow(t->shape[d] - 1, t->stride[d], &reach);
        overflow |= __builtin_mul_overflow(numel, t->shape[d], &numel);
        int64_t *side = t->stride[d] < 0 ? &before : &after;
        overflow |= __builtin_add_overflow(*side, reach, side);
    }
    if (empty) return NK_OK;
    overflow |= __builtin_mul_overflow(before, size, &low) || __builtin_mul_overflow(after, size, &high) ||
                __builtin_add_overflow(high, size, &high) || numel > INT64_MAX / 4;
    NK_CHECK_AT(!overflow, NK_VALUE_ERROR, t, "shape %s, its sizes or strides overflow 64-bit arithmetic",
                nk_shape_text(t).s);
    return NK_OK;
}

nk_status nk_check_tensor(const nk_tensor *t, unsigned dtypes, const nk_tensor *first)
{
    NK_CHECK_AT(dtypes & NK_DTYPE_BIT(t->dtype), NK_TYPE_ERROR, t, "dtype %s, expected %s", nk_dtype_name(t->dtype),
                dtypes_text(dtypes).s);
    NK_CHECK_AT(t->device.type == first->device.type &&
                    (t->device.type == NK_CPU || t->device.index == first->device.index),
                NK_VALUE_ERROR, t, "device %s, expected %s (the device of %s)", device_text(t->device).s,
                device_text(first->device).s, first->name);
    NK_CHECK_AT(((uintptr_t)t->data & (uintptr_t)(nk_dtype_size(t->dtype) - 1)) == 0, NK_VALUE_ERROR, t,
                "data at an address that is no multiple of %" PRId64 ", expected aligned %s", nk_dtype_size(t->dtype),
                nk_dtype_name(t->dtype));
    return check_sizes(t);
}

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

nk_status nk_view_of(const nk_tensor *t, const char *what, const nk_view *like, const nk_tensor *like_t, nk_view *v)
{
    NK_CHECK_AT(t->ndim == 2 || t->ndim == 3, NK_VALUE_ERROR, t, "shape %s, expected %s with or without the batch L",
                nk_shape_text(t).s, what);
    int64_t size = nk_dtype_size(t->dtype);
    int row = t->ndim - 2;
    *v = (nk_view){
        .batched = t->ndim == 3,
        .l = t->ndim == 3 ? t->shape[0] : 1,
        .rows = t->shape[row],
        .cols = t->shape[row + 1],
        .batch_stride = t->ndim == 3 ? t->stride[0] * size : 0,
        .row_stride = t->stride[row] * size,
        .col_stride = t->stride[row + 1] * size,
    };
    if (like) {
        NK_CHECK_AT(v->batched == like->batched && v->l == like->l, NK_VALUE_ERROR, t,
                    "shape %s, expected %s with the batch of %s, which has shape %s", nk_shape_text(t).s, what,
                    like_t->name, nk_shape_text(like_t).s);
    }
    return NK_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Operands and their scales                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

nk_status nk_blocked_bytes(const nk_tensor *t, int64_t rows, int64_t k, int64_t *bytes)
{
    /* Every size has been checked, which leaves room for padding. */
    int64_t cols = nk_sf_padded_cols(k / NK_SF_VEC);
    return nk_mul(nk_sf_padded_rows(rows), cols, t, bytes);
}

/* The competition's view [32, 4, rest_m, 4, rest_k(, L)] of blocked bytes; L may have any stride. */
static bool is_permuted_view(const nk_tensor *sf, const nk_view *of, int64_t k)
{
    int64_t rest_m = nk_ceil_div(of->rows, NK_SF_ATOM_ROWS);
    int64_t rest_k = nk_ceil_div(k / NK_SF_VEC, NK_SF_ATOM_COLS);
    if (sf->ndim != 5 && sf->ndim != 6) return false;
    const int64_t shape[] = {32, 4, rest_m, 4, rest_k, of->l};
    const int64_t stride[] = {16, 4, rest_k * NK_SF_ATOM_BYTES, 1, NK_SF_ATOM_BYTES};
    for (int d = 0; d < sf->ndim; d++) {
        if (sf->shape[d] != shape[d]) return false;
        if (d < 5 && shape[d] > 1 && sf->stride[d] != stride[d] && nk_numel(sf) > 0) return false;
    }
    return sf->ndim == 6 || of->l == 1;
}

static nk_status check_blocked(const nk_tensor *sf, const nk_view *of, int64_t k, int64_t *batch_stride)
{
    int64_t bytes, all;
    NK_TRY(nk_blocked_bytes(sf, of->rows, k, &bytes));
    NK_TRY(nk_mul(bytes, of->l, sf, &all));
    if (is_permuted_view(sf, of, k)) {
        *batch_stride = sf->ndim == 6 ? sf->stride[5] : 0;
        return NK_OK;
    }
    if (sf->ndim == 3 && of->batched) { /* [L, padded rows, padded cols] */
        NK_CHECK_AT(sf->shape[0] == of->l && is_contiguous(sf, 1) && sf->shape[1] * sf->shape[2] >= bytes,
                    NK_VALUE_ERROR, sf,
                    "shape %s, expected blocked scales [%" PRId64 ", ..] with at least %" PRId64
                    " contiguous bytes in each batch",
                    nk_shape_text(sf).s, of->l, bytes);
        *batch_stride = sf->stride[0];
        return NK_OK;
    }
    /* A 5-D or 6-D tensor in another order than memory's is no byte buffer, even where it is contiguous. */
    bool natural =
        sf->ndim < 5 || (sf->shape[sf->ndim - 3] == 32 && sf->shape[sf->ndim - 2] == 4 && sf->shape[sf->ndim - 1] == 4);
    NK_CHECK_AT(natural && is_contiguous(sf, 0) && nk_numel(sf) >= all, NK_VALUE_ERROR, sf,
                "shape %s, expected blocked scales: a [32, 4, %" PRId64 ", 4, %" PRId64 ", %" PRId64
                "] view of them or a contiguous buffer of at least %" PRId64 " bytes",
                nk_shape_text(sf).s, nk_ceil_div(of->rows, NK_SF_ATOM_ROWS),
                nk_ceil_div(k / NK_SF_VEC, NK_SF_ATOM_COLS), of->l, all);
    *batch_stride = bytes;
    return NK_OK;
}

nk_status nk_check_scales(const nk_tensor *sf, nk_sf_layout layout, const nk_view *of, int64_t k,
                          const nk_tensor *first, const uint8_t **data, int64_t *row_stride, int64_t *batch_stride)
{
    NK_TRY(nk_check_tensor(sf, NK_FP8, first));
    *data = sf->data;
    *row_stride = 0;
    if (layout == NK_SF_BLOCKED) return check_blocked(sf, of, k, batch_stride);

    bool fits = sf->ndim == (of->batched ? 3 : 2);
    if (fits) {
        nk_view v;
        NK_TRY(nk_view_of(sf, "[rows, K/16]", NULL, NULL, &v));
        fits = v.l == of->l && v.rows == of->rows && v.cols == k / NK_SF_VEC;
        NK_CHECK_AT(!fits || v.cols <= 1 || v.col_stride == 1, NK_VALUE_ERROR, sf,
                    "stride %" PRId64 " along K/16, expected 1", v.col_stride);
        *row_stride = v.row_stride;
        *batch_stride = v.batch_stride;
    }
    if (fits) return NK_OK;
    char batch[32] = "";
    if (of->batched) snprintf(batch, sizeof batch, "%" PRId64 ", ", of->l);
    return nk_fail_at(NK_VALUE_ERROR, sf, "shape %s, expected (%s%" PRId64 ", %" PRId64 ") for scale_layout 'linear'%s",
                      nk_shape_text(sf).s, batch, of->rows, k / NK_SF_VEC,
                      sf->ndim >= 5 ? "; this looks like scale_layout='blocked'" : "");
}

nk_status nk_check_operand(const nk_tensor *t, const nk_tensor *sf, const char *sf_name, nk_sf_layout layout,
                           unsigned dtypes, const nk_tensor *first, const nk_view *like, nk_operand *operand,
                           nk_view *v, int64_t *k)
{
    NK_TRY(nk_check_tensor(t, dtypes, first));
    bool fp4 = NK_FP4 & NK_DTYPE_BIT(t->dtype);
    NK_TRY(nk_view_of(t, fp4 ? "[rows, K/2]" : "[rows, K]", like, first, v));
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
    NK_CHECK_AT(v->cols <= 1 || v->col_stride == 1, NK_VALUE_ERROR, t, "stride %" PRId64 " along K, expected 1",
                v->col_stride);
    NK_CHECK(sf, NK_VALUE_ERROR, "%s: None, expected the scales of %s, which has dtype %s", sf_name, t->name,
             nk_dtype_name(t->dtype));
    return nk_check_scales(sf, layout, v, *k, first, &operand->sf, &operand->sf_row_stride, &operand->sf_batch_stride);
}

nk_status nk_check_k_innermost(const nk_tensor *t, const nk_operand *operand)
{
    int64_t size = nk_dtype_size(t->dtype);
    NK_CHECK_AT(t->shape[t->ndim - 1] <= 1 || operand->k_stride == size, NK_VALUE_ERROR, t,
                "stride %" PRId64 " along K, expected 1", operand->k_stride / size);
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

nk_status nk_check_offsets(const nk_tensor *offsets, int64_t rows, const nk_tensor *first, int64_t *atoms)
{
    NK_TRY(nk_check_tensor(offsets, NK_DTYPE_BIT(NK_I32), first));
    NK_CHECK_AT(offsets->ndim == 1 && offsets->shape[0] >= 1, NK_VALUE_ERROR, offsets, "shape %s, expected [G + 1]",
                nk_shape_text(offsets).s);
    NK_CHECK_AT(offsets->shape[0] == 1 || offsets->stride[0] == 1, NK_VALUE_ERROR, offsets,
                "stride %" PRId64 ", expected 1", offsets->stride[0]);
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

/* ---------------------------------------------------------------------------------------------------------------- */
/* Outputs                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Field by field: clearing an nk_tensor first takes longer than this does. */
static void set_spec(nk_tensor *spec, const char *name, nk_dtype dtype, nk_device device, int ndim,
                     const int64_t *shape)
{
    int64_t stride = 1;
    spec->name = name;
    spec->index = -1;
    spec->read_only = false;
    spec->dtype = dtype;
    spec->device = device;
    spec->ndim = ndim;
    spec->data = NULL;
    for (int d = ndim - 1; d >= 0; d--) {
        spec->shape[d] = shape[d];
        spec->stride[d] = stride;
        stride *= shape[d] > 1 ? shape[d] : 1;
    }
}

nk_tensor nk_spec(const char *name, nk_dtype dtype, nk_device device, int ndim, const int64_t *shape)
{
    nk_tensor spec;
    set_spec(&spec, name, dtype, device, ndim, shape);
    return spec;
}

nk_status nk_spec_matrix(const char *name, nk_dtype dtype, const nk_tensor *first, const nk_view *like, int64_t rows,
                         int64_t cols, nk_tensor *spec)
{
    int64_t shape[3] = {like->l, rows, cols}, bytes;
    int skipped = like->batched ? 0 : 1;
    NK_TRY(nk_mul(rows, cols, first, &bytes));
    NK_TRY(nk_mul(bytes, like->l, first, &bytes));
    NK_TRY(nk_mul(bytes, nk_dtype_size(dtype), first, &bytes));
    set_spec(spec, name, dtype, first->device, 3 - skipped, shape + skipped);
    return NK_OK;
}

int nk_sorted_dims(const nk_tensor *t, int dims[NK_MAX_DIMS])
{
    int count = 0;
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] <= 1) continue;
        int at = count++;
        for (; at > 0 && t->stride[dims[at - 1]] > t->stride[d]; at--)
            dims[at] = dims[at - 1];
        dims[at] = d;
    }
    return count;
}

nk_status nk_check_out(const nk_tensor **out, const nk_tensor *spec, unsigned dtypes, const nk_exec *exec,
                       const nk_tensor *first)
{
    if (!*out) {
        NK_CHECK(exec->dry_run, NK_VALUE_ERROR, "%s: missing", spec->name);
        *out = spec;
        return NK_OK;
    }
    const nk_tensor *t = *out;
    NK_TRY(nk_check_tensor(t, dtypes, first));
    bool same = t->ndim == spec->ndim;
    for (int d = 0; same && d < t->ndim; d++)
        same = t->shape[d] == spec->shape[d];
    NK_CHECK_AT(same, NK_VALUE_ERROR, t, "shape %s, expected %s", nk_shape_text(t).s, nk_shape_text(spec).s);
    return nk_check_writable(t);
}

nk_status nk_check_writable(const nk_tensor *t)
{
    NK_CHECK_AT(!t->read_only, NK_VALUE_ERROR, t, "read-only, expected a tensor that can be written");

    int dims[NK_MAX_DIMS], count = nk_sorted_dims(t, dims);
    int64_t covered = 1;
    for (int i = 0; i < count; i++) {
        int64_t stride = t->stride[dims[i]];
        NK_CHECK_AT(stride >= covered, NK_VALUE_ERROR, t,
                    "stride %" PRId64 " in dimension %d puts elements in one place, expected at least %" PRId64, stride,
                    dims[i], covered);
        covered = stride * t->shape[dims[i]];
    }
    return NK_OK;
}

nk_status nk_check_out_matrix(const nk_tensor *out, const nk_tensor *spec, const nk_exec *exec, const nk_tensor *first,
                              nk_output *checked)
{
    NK_TRY(nk_check_out(&out, spec, NK_FLOATS, exec, first));
    nk_view v;
    NK_TRY(nk_view_of(out, "[M, N]", NULL, NULL, &v));
    int64_t size = nk_dtype_size(out->dtype);
    NK_CHECK_AT(v.cols <= 1 || v.rows <= 1 || v.col_stride == size || v.row_stride == size, NK_VALUE_ERROR, out,
                "strides of %" PRId64 " and %" PRId64 " elements, expected rows or columns to be contiguous",
                v.row_stride / size, v.col_stride / size);
    *checked = (nk_output){
        .data = out->data,
        .dtype = out->dtype,
        .row_stride = v.row_stride,
        .col_stride = v.col_stride,
        .batch_stride = v.batch_stride,
    };
    return NK_OK;
}
