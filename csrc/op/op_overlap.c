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

/* The outputs are sorted by their first byte. `reach` is the furthest last byte up to this one. So the search for
 * overlaps with a tensor goes back from the first output beyond it, and ends where no earlier output reaches the
 * tensor. */
typedef struct sorted_output {
    const nk_tensor *t;
    range in;
    uintptr_t reach;
} sorted_output;

size_t nk_disjoint_bytes(void) { return sizeof(sorted_output); }

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

/* *compared grows by the outputs looked at. */
static nk_status check_against_outputs(const sorted_output *sorted, size_t count, const nk_tensor *other,
                                       int64_t *compared)
{
    const range in = range_of(other);
    for (const sorted_output *o = first_beyond(sorted, count, in.high); o > sorted && o[-1].reach > in.low; o--) {
        if (ranges_meet(o[-1].in, in)) NK_TRY(check(o[-1].t, o[-1].in, other, in));
        ++*compared;
    }
    return NK_OK;
}

/* Shell's sort: of many it takes far less than the square, and few it inserts one by one. */
static void sort(sorted_output *outputs, size_t count)
{
    size_t gap = 1;
    while (gap < count / 9)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3) {
        for (size_t i = gap; i < count; i++) {
            const sorted_output next = outputs[i];
            size_t at = i;
            for (; at >= gap && outputs[at - gap].in.low > next.in.low; at -= gap)
                outputs[at] = outputs[at - gap];
            outputs[at] = next;
        }
    }
}

static size_t sort_outputs(const nk_gemm_args *list, int64_t groups, sorted_output *sorted)
{
    size_t count = 0;
    for (int64_t g = 0; g < groups; g++) {
        if (list[g].out) sorted[count++] = (sorted_output){.t = list[g].out, .in = range_of(list[g].out)};
    }
    sort(sorted, count);
    uintptr_t reach = 0;
    for (size_t i = 0; i < count; i++) {
        if (sorted[i].in.high > reach) reach = sorted[i].in.high;
        sorted[i].reach = reach;
    }
    return count;
}

/* Outputs that interleave, as columns of one matrix do, are compared with each other: it may take long. */
#define ASK_AFTER (1 << 20) /* comparisons */

nk_status nk_check_disjoint_groups(const nk_gemm_args *list, int64_t groups, void *memory, const nk_exec *exec)
{
    sorted_output *sorted = memory;
    size_t count = sort_outputs(list, groups, sorted);
    int64_t compared = 0;
    for (int64_t g = 0; g < groups && count > 0; g++) {
        const nk_gemm_args *o = &list[g];
        const nk_tensor *tensors[] = {o->a, o->b, o->sfa, o->sfb, o->alpha.tensor, o->row_scale, o->bias, o->out};
        for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
            if (tensors[i]) NK_TRY(check_against_outputs(sorted, count, tensors[i], &compared));
        if (compared < ASK_AFTER) continue;
        compared = 0;
        if (exec->interrupted && exec->interrupted(exec->context)) return NK_INTERRUPTED;
    }
    return NK_OK;
}
