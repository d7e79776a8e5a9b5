/* Finds out whether an output has a byte in common with another tensor. */
#include "op_check.h"

/* A tensor as rows of `width` bytes, `pitch` bytes apart. With pitch 0 there is one row. With pitch 1 the tensor has no
 * such form, and counts as every byte of its range. */
typedef struct rectangle {
    int64_t width, pitch;
} rectangle;

typedef struct range {
    uintptr_t low, high; /* all bytes lie in [low, high) */
} range;

/* An empty tensor gets any range: what finds that it overlaps asks has_no_element(). Sizes have been checked, but empty
 * tensors may have any stride: unsigned arithmetic may overflow. */
static range range_of(const nk_tensor *t)
{
    uintptr_t low = 0, high = 1, size = (uintptr_t)nk_dtype_size(t->dtype);
    for (int d = 0; d < t->ndim; d++) {
        uintptr_t reach = (uintptr_t)(t->shape[d] - 1) * (uintptr_t)t->stride[d];
        if (t->stride[d] < 0)
            low += reach;
        else
            high += reach;
    }
    return (range){(uintptr_t)t->data + low * size, (uintptr_t)t->data + high * size};
}

static bool ranges_meet(range x, range y) { return x.low < y.high && y.low < x.high; }

static bool has_no_element(const nk_tensor *t)
{
    bool empty = false;
    for (int d = 0; d < t->ndim; d++)
        empty |= t->shape[d] == 0;
    return empty;
}

static rectangle rectangle_of(const nk_tensor *t)
{
    int64_t size = nk_dtype_size(t->dtype);
    rectangle r = {size, 0};
    int dims[NK_MAX_DIMS], count = nk_sorted_dims(t, dims);
    for (int i = 0; i < count; i++) {
        int64_t stride = t->stride[dims[i]] * size;
        if (stride < 0) return (rectangle){0, 1};
        if (!r.pitch && stride <= r.width)
            r.width += stride * (t->shape[dims[i]] - 1);
        else if (!r.pitch)
            r.pitch = stride;
        else if (stride % r.pitch != 0)
            return (rectangle){0, 1};
    }
    return r;
}

/* For two tensors whose ranges overlap. */
static bool shares_bytes(const nk_tensor *x, range in_x, const nk_tensor *y, range in_y)
{
    if (has_no_element(x) || has_no_element(y)) return false;
    rectangle a = rectangle_of(x), b = rectangle_of(y);
    if (a.pitch <= 1 || a.pitch != b.pitch) return true;
    uintptr_t pitch = (uintptr_t)a.pitch, from_a_to_b = (in_y.low % pitch + pitch - in_x.low % pitch) % pitch;
    return from_a_to_b < (uintptr_t)a.width || pitch - from_a_to_b < (uintptr_t)b.width;
}

static nk_status check(const nk_tensor *out, range in_out, const nk_tensor *other, range in_other)
{
    NK_CHECK_AT(other == out || !shares_bytes(out, in_out, other, in_other), NK_VALUE_ERROR, out,
                "shares memory with %s, expected memory of its own", other->name);
    return NK_OK;
}

nk_status nk_check_disjoint(const nk_tensor *out, const nk_tensor *const *others, int count)
{
    const range in_out = range_of(out);
    for (int i = 0; i < count; i++) {
        if (!others[i]) continue;
        const range in_other = range_of(others[i]);
        if (ranges_meet(in_out, in_other)) NK_TRY(check(out, in_out, others[i], in_other));
    }
    return NK_OK;
}

/* At most MOST_OUTPUTS outputs are taken at a time and sorted by their first byte. `reach` is the furthest last byte up
 * to this one. So the search for overlaps with a tensor goes back from the first output beyond it, and ends where no
 * earlier output reaches the tensor. */
#define MOST_OUTPUTS 128
typedef struct sorted_output {
    const nk_tensor *t;
    range in;
    uintptr_t reach;
} sorted_output;

/* The first output that does not begin below `end`; `count` is at least 1. A binary search whose branches need no
 * prediction. */
static const sorted_output *first_beyond(const sorted_output *sorted, size_t count, uintptr_t end)
{
    for (size_t half; count > 1; count -= half) {
        half = count / 2;
        sorted += sorted[half - 1].in.low < end ? half : 0;
    }
    return sorted + (sorted->in.low < end);
}

static nk_status check_against_outputs(const sorted_output *sorted, size_t count, const nk_tensor *other)
{
    const range in = range_of(other);
    for (const sorted_output *o = first_beyond(sorted, count, in.high); o > sorted && o[-1].reach > in.low; o--) {
        if (ranges_meet(o[-1].in, in)) NK_TRY(check(o[-1].t, o[-1].in, other, in));
    }
    return NK_OK;
}

/* Takes and sorts the outputs of groups from `g` on; returns the first group that is left. */
static int64_t take_outputs(const nk_gemm_args *list, int64_t g, int64_t groups, sorted_output *sorted, size_t *count)
{
    *count = 0;
    for (; g < groups && *count < MOST_OUTPUTS; g++) {
        if (!list[g].out) continue;
        const sorted_output next = {.t = list[g].out, .in = range_of(list[g].out)};
        size_t at = (*count)++;
        for (; at > 0 && sorted[at - 1].in.low > next.in.low; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = next;
    }
    uintptr_t reach = 0;
    for (size_t i = 0; i < *count; i++) {
        if (sorted[i].in.high > reach) reach = sorted[i].in.high;
        sorted[i].reach = reach;
    }
    return g;
}

nk_status nk_check_disjoint_groups(const nk_gemm_args *list, int64_t groups)
{
    sorted_output sorted[MOST_OUTPUTS];
    size_t count;
    for (int64_t next = 0; next < groups;) {
        next = take_outputs(list, next, groups, sorted, &count);
        for (int64_t g = 0; g < groups && count > 0; g++) {
            const nk_gemm_args *o = &list[g];
            const nk_tensor *tensors[] = {o->a, o->b, o->sfa, o->sfb, o->alpha.tensor, o->bias, o->out};
            for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
                if (tensors[i]) NK_TRY(check_against_outputs(sorted, count, tensors[i]));
        }
    }
    return NK_OK;
}
