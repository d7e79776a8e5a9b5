/* The checks of any tensor, the messages they make, and what outputs must be. */
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

static nk_text tuple_text(const int64_t *items, int count)
{
    nk_text text = {"("};
    size_t at = 1;
    for (int d = 0; d < count && at < sizeof text.s; d++) {
        at += (size_t)snprintf(text.s + at, sizeof text.s - at, "%s%" PRId64, d ? ", " : "", items[d]);
    }
    if (at < sizeof text.s) snprintf(text.s + at, sizeof text.s - at, "%s)", count == 1 ? "," : "");
    return text;
}

nk_text nk_shape_text(const nk_tensor *t) { return tuple_text(t->shape, t->ndim); }
nk_text nk_stride_text(const nk_tensor *t) { return tuple_text(t->stride, t->ndim); }

static const char *const dtype_names[] = {
    [NK_U8] = "uint8",           [NK_E2M1X2] = "float4_e2m1fn_x2",
    [NK_E4M3] = "float8_e4m3fn", [NK_F16] = "float16",
    [NK_BF16] = "bfloat16",      [NK_F32] = "float32",
    [NK_I32] = "int32",          [NK_OTHER] = "other",
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

nk_status nk_fail_product(int64_t x, int64_t y, const nk_tensor *t)
{
    return nk_fail_at(NK_VALUE_ERROR, t, "sizes %" PRId64 " x %" PRId64 " overflow 64-bit arithmetic", x, y);
}

int64_t nk_numel(const nk_tensor *t)
{
    int64_t numel = 1;
    for (int d = 0; d < t->ndim; d++)
        numel *= t->shape[d];
    return numel;
}

static int bits_of(uint64_t x) { return 64 - __builtin_clzll(x | 1); }

/* Whether sizes and strides are so small that nothing made of them overflows 64 bits. This fast test passes most
 * tensors. */
static bool is_small(const nk_tensor *t)
{
    uint64_t sizes = 0, strides = 0;
    for (int d = 0; d < t->ndim; d++) {
        sizes |= (uint64_t)t->shape[d]; /* a negative one has its highest bit set */
        strides |= (uint64_t)t->stride[d];
    }
    return t->ndim * bits_of(sizes) <= 54 && bits_of(sizes) + bits_of(strides) <= 54;
}

/* The number of bytes, and every offset in bytes from the first element, must fit 64 bits. */
static nk_status check_sizes(const nk_tensor *t)
{
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

static bool same_device(nk_device x, nk_device y)
{
    return x.type == y.type && (x.type == NK_CPU || x.index == y.index);
}

static bool is_element_aligned(const nk_tensor *t)
{
    return ((uintptr_t)t->data & (uintptr_t)(nk_dtype_size(t->dtype) - 1)) == 0;
}

/* Finds out what is wrong: nothing, if only the sizes failed the fast test. NK_COLD here and below: a tensor that
 * passes must not pay for the stack that messages take. */
static NK_COLD nk_status check_tensor_closely(const nk_tensor *t, unsigned dtypes, const nk_tensor *first)
{
    const bool one = (dtypes & (dtypes - 1)) == 0;
    NK_CHECK_AT(dtypes & NK_DTYPE_BIT(t->dtype), NK_TYPE_ERROR, t, "dtype %s, expected %s%s%s%s",
                t->dtype == NK_OTHER ? t->other : nk_dtype_name(t->dtype), dtypes_text(dtypes).s,
                one ? ", in torch .to(torch." : "", one ? dtypes_text(dtypes).s : "", one ? ")" : "");
    NK_CHECK_AT(same_device(t->device, first->device), NK_VALUE_ERROR, t, "device %s, expected %s (the device of %s)",
                device_text(t->device).s, device_text(first->device).s, first->name);
    NK_CHECK_AT(is_element_aligned(t), NK_VALUE_ERROR, t,
                "data at an address that is no multiple of %" PRId64 ", expected aligned %s", nk_dtype_size(t->dtype),
                nk_dtype_name(t->dtype));
    return check_sizes(t);
}

nk_status nk_check_tensor(const nk_tensor *t, unsigned dtypes, const nk_tensor *first)
{
    bool passes = dtypes & NK_DTYPE_BIT(t->dtype) && same_device(t->device, first->device) && is_element_aligned(t);
    return passes && is_small(t) ? NK_OK : check_tensor_closely(t, dtypes, first);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Outputs                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Sets every field but the sizes. One by one, since clearing an nk_tensor first would take longer. */
static void begin_spec(nk_tensor *spec, const char *name, nk_dtype dtype, nk_device device, int ndim)
{
    spec->name = name;
    spec->index = -1;
    spec->read_only = false;
    spec->dtype = dtype;
    spec->device = device;
    spec->ndim = ndim;
    spec->data = NULL;
}

static int64_t extent_or_one(int64_t x) { return x > 1 ? x : 1; }

nk_dtype nk_result_dtype(nk_dtype asked, const nk_tensor *tokens)
{
    if (asked != NK_OTHER) return asked;
    return NK_HALVES & NK_DTYPE_BIT(tokens->dtype) ? tokens->dtype : NK_F16;
}

nk_tensor nk_spec(const char *name, nk_dtype dtype, nk_device device, int ndim, const int64_t *shape)
{
    nk_tensor spec;
    int64_t stride = 1;
    begin_spec(&spec, name, dtype, device, ndim);
    for (int d = ndim - 1; d >= 0; d--) {
        spec.shape[d] = shape[d];
        spec.stride[d] = stride;
        stride *= extent_or_one(shape[d]);
    }
    return spec;
}

nk_status nk_spec_matrix(const char *name, nk_dtype dtype, const nk_tensor *first, const nk_view *like, int64_t rows,
                         int64_t cols, nk_tensor *spec)
{
    const bool row_alone = like->rank == 1 && rows == 1; /* [K] in, [N] out */
    const int ndim = row_alone ? 1 : like->rank < 2 ? 2 : like->rank;
    int64_t bytes, stride = 1;
    NK_TRY(nk_mul(rows, cols, first, &bytes));
    NK_TRY(nk_mul(bytes, like->l, first, &bytes));
    NK_TRY(nk_mul(bytes, nk_dtype_size(dtype), first, &bytes));
    begin_spec(spec, name, dtype, first->device, ndim);
    for (int d = ndim - 1; d >= 0; d--) {
        int64_t size = d == ndim - 1 ? cols : d == ndim - 2 ? rows : like->lead[d];
        spec->shape[d] = size;
        spec->stride[d] = stride;
        stride *= extent_or_one(size);
    }
    return NK_OK;
}

nk_status nk_spec_rows(const char *name, nk_dtype dtype, const nk_tensor *first, int64_t m, int64_t cols,
                       nk_tensor *spec)
{
    int64_t shape[NK_MAX_DIMS], bytes;
    NK_TRY(nk_mul(cols, nk_dtype_size(dtype), first, &bytes));
    NK_TRY(nk_mul(m, bytes, first, &bytes));
    memcpy(shape, first->shape, sizeof shape);
    shape[first->ndim - 1] = cols;
    *spec = nk_spec(name, dtype, first->device, first->ndim, shape);
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

/* How many elements a dimension spans, at most what 64 bits hold. */
static int64_t elements_spanned(const nk_tensor *t, int d)
{
    int64_t span;
    return __builtin_mul_overflow(t->stride[d], t->shape[d], &span) ? INT64_MAX : span;
}

/* Whether the stride of every dimension spans all dimensions after it. Most outputs pass, and need no sorting. */
static bool is_row_major(const nk_tensor *t)
{
    int64_t covered = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->shape[d] <= 1) continue;
        if (t->stride[d] < covered) return false;
        covered = elements_spanned(t, d);
    }
    return true;
}

static NK_COLD nk_status check_no_overlap_within(const nk_tensor *t)
{
    int dims[NK_MAX_DIMS], count = nk_sorted_dims(t, dims);
    int64_t covered = 1;
    for (int i = 0; i < count; i++) {
        int64_t stride = t->stride[dims[i]];
        NK_CHECK_AT(stride >= 0, NK_VALUE_ERROR, t, "stride %" PRId64 " in dimension %d, expected none below 0", stride,
                    dims[i]);
        NK_CHECK_AT(stride >= covered, NK_VALUE_ERROR, t,
                    "stride %" PRId64 " in dimension %d puts elements in one place, expected at least %" PRId64, stride,
                    dims[i], covered);
        covered = elements_spanned(t, dims[i]);
    }
    return NK_OK;
}

nk_status nk_check_writable(const nk_tensor *t)
{
    NK_CHECK_AT(!t->read_only, NK_VALUE_ERROR, t, "read-only, expected a tensor that can be written");
    return is_row_major(t) ? NK_OK : check_no_overlap_within(t);
}

/* The output that `v` sees in `out`. */
static nk_status output_of(const nk_tensor *out, const nk_view *v, nk_output *checked)
{
    int64_t size = nk_dtype_size(out->dtype);
    NK_CHECK_AT(v->cols <= 1 || v->rows <= 1 || v->col_stride == size || v->row_stride == size, NK_VALUE_ERROR, out,
                "strides of %" PRId64 " and %" PRId64 " elements, expected rows or columns to be contiguous",
                v->row_stride / size, v->col_stride / size);
    *checked = (nk_output){
        .data = out->data,
        .dtype = out->dtype,
        .row_stride = v->row_stride,
        .col_stride = v->col_stride,
        .batch_stride = v->batch_stride,
    };
    return NK_OK;
}

nk_status nk_check_out_matrix(const nk_tensor *out, const nk_tensor *spec, const nk_exec *exec, const nk_tensor *first,
                              nk_output *checked)
{
    nk_view v;
    NK_TRY(nk_check_out(&out, spec, NK_FLOATS, exec, first));
    NK_TRY(nk_view_of(out, "[.., M, N]", &v));
    return output_of(out, &v, checked);
}

nk_status nk_check_out_rows(const nk_tensor *out, const nk_tensor *spec, unsigned dtypes, const nk_exec *exec,
                            const nk_tensor *first, nk_output *checked)
{
    nk_view v;
    NK_TRY(nk_check_out(&out, spec, dtypes, exec, first));
    NK_TRY(nk_rows_of(out, "[.., M, N]", &v));
    return output_of(out, &v, checked);
}
