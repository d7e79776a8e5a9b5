/* Describes a DLTensor as an nk_tensor: dtype, device, dimensions and strides. */
#include "py_describe.h"

#include <string.h>

static const struct {
    DLDataType dl;
    const char *name;
} dtypes[] = {
    [NK_U8] = {{kDLUInt, 8, 1}, "uint8"},
    [NK_E2M1X2] = {{kDLFloat4_e2m1fn, 4, 2}, "float4_e2m1fn_x2"},
    [NK_E4M3] = {{kDLFloat8_e4m3fn, 8, 1}, "float8_e4m3fn"},
    [NK_F16] = {{kDLFloat, 16, 1}, "float16"},
    [NK_BF16] = {{kDLBfloat, 16, 1}, "bfloat16"},
    [NK_F32] = {{kDLFloat, 32, 1}, "float32"},
    [NK_I32] = {{kDLInt, 32, 1}, "int32"},
};
#define DTYPES ((int)(sizeof dtypes / sizeof dtypes[0]))

/* NK_OTHER by name: what frameworks have beside these, so that messages can say what came. */
static const struct {
    DLDataType dl;
    const char *name;
} others[] = {
    {{kDLInt, 8, 1}, "int8"},
    {{kDLInt, 16, 1}, "int16"},
    {{kDLInt, 64, 1}, "int64"},
    {{kDLUInt, 16, 1}, "uint16"},
    {{kDLUInt, 32, 1}, "uint32"},
    {{kDLUInt, 64, 1}, "uint64"},
    {{kDLFloat, 64, 1}, "float64"},
    {{kDLBool, 8, 1}, "bool"},
    {{kDLComplex, 32, 1}, "complex32"},
    {{kDLComplex, 64, 1}, "complex64"},
    {{kDLComplex, 128, 1}, "complex128"},
    {{kDLFloat8_e5m2, 8, 1}, "float8_e5m2"},
    {{kDLFloat8_e4m3fnuz, 8, 1}, "float8_e4m3fnuz"},
    {{kDLFloat8_e5m2fnuz, 8, 1}, "float8_e5m2fnuz"},
    {{kDLFloat8_e8m0fnu, 8, 1}, "float8_e8m0fnu"},
};
#define OTHERS ((int)(sizeof others / sizeof others[0]))

const char *py_dtype_name(nk_dtype dtype) { return dtypes[dtype].name; }
const char *py_dtype_name_of(const nk_tensor *t) { return t->dtype == NK_OTHER ? t->other : dtypes[t->dtype].name; }

DLDataType py_dtype_to_dlpack(nk_dtype dtype) { return dtypes[dtype].dl; }

int py_dtype_named(const nk_tensor *t, const char *name, DLDataType *dtype)
{
    for (int i = 0; i < DTYPES + OTHERS; i++) {
        if (strcmp(name, i < DTYPES ? dtypes[i].name : others[i - DTYPES].name) != 0) continue;
        *dtype = i < DTYPES ? dtypes[i].dl : others[i - DTYPES].dl;
        return 0;
    }
    return py_fail_at(PyExc_TypeError, t->name, t->index, "dtype %s, expected one that an operator takes", name);
}

static bool same_dtype(DLDataType x, DLDataType y) { return memcmp(&x, &y, sizeof x) == 0; /* 4 bytes without gaps */ }

/* Turns a shape that counts fp4 elements, [.., K], as JAX and ml_dtypes have it, into one that counts bytes. */
static int halve_last_dim(nk_tensor *t)
{
    int last = t->ndim - 1;
    if (last < 0 || t->shape[last] % 2) {
        return py_fail_at(PyExc_ValueError, t->name, t->index, "an odd number of fp4 elements, expected two per byte");
    }
    bool packed = t->stride[last] == 1 || t->shape[last] == 0;
    for (int d = 0; d < last; d++)
        packed = packed && t->stride[d] % 2 == 0;
    if (!packed) {
        return py_fail_at(PyExc_ValueError, t->name, t->index,
                          "fp4 elements that are not packed along the last dimension");
    }
    t->shape[last] /= 2;
    for (int d = 0; d < last; d++)
        t->stride[d] /= 2;
    py_tidy_strides(t);
    return 0;
}

/* Out of line, so that the compiler inlines set_dtype(), the usual case. */
static __attribute__((noinline)) int set_other_dtype(nk_tensor *t, DLDataType dtype)
{
    if (same_dtype(dtype, (DLDataType){kDLFloat4_e2m1fn, 4, 1})) {
        t->dtype = NK_E2M1X2;
        return halve_last_dim(t);
    }
    for (int i = 0; i < OTHERS; i++) {
        if (!same_dtype(dtype, others[i].dl)) continue;
        t->dtype = NK_OTHER;
        t->other = others[i].name;
        return 0;
    }
    return py_fail_at(PyExc_TypeError, t->name, t->index,
                      "dtype of DLPack code %d, %d bits, %d lanes, expected one that an operator takes", dtype.code,
                      dtype.bits, dtype.lanes);
}

static int set_dtype(nk_tensor *t, DLDataType dtype)
{
    for (int i = 0; i < DTYPES; i++) {
        if (!same_dtype(dtype, dtypes[i].dl)) continue;
        t->dtype = (nk_dtype)i;
        return 0;
    }
    return set_other_dtype(t, dtype);
}

static int set_device(py_call *call, nk_tensor *t, DLDevice device)
{
    switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
        t->device = (nk_device){NK_CPU, 0};
        return 0;
    case kDLCUDA:
    case kDLCUDAManaged:
        t->device = (nk_device){NK_CUDA, device.device_id};
        return 0;
    default:
        return py_fail_at(call->state->backend_error, t->name, t->index,
                          "on DLPack device type %d, expected CPU or CUDA", (int)device.device_type);
    }
}

/* The strides of a compact tensor: for an exporter that gives none, as DLPack before 1.2 allowed, and for a tensor
 * without elements, whose strides are unused. */
static void set_compact(nk_tensor *t, const int64_t *shape)
{
    uint64_t inner = 1; /* unsigned: the operator reports sizes that overflow */
    for (int d = t->ndim - 1; d >= 0; d--) {
        t->shape[d] = shape[d];
        t->stride[d] = (int64_t)inner;
        inner *= shape[d] ? (uint64_t)shape[d] : 1;
    }
}

/* Frameworks give a dimension of extent 1 any stride, even 0: here it gets a compact tensor's. `shape` and `strides`
 * may be those of *t. */
static void set_dims(nk_tensor *t, const int64_t *shape, const int64_t *strides)
{
    bool empty = false;
    uint64_t inner = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        const int64_t size = shape[d];
        int64_t stride = (int64_t)inner;
        if ((uint64_t)size > 1)
            stride = strides[d];
        else
            empty |= size == 0;
        t->shape[d] = size;
        t->stride[d] = stride;
        inner = (uint64_t)size * (uint64_t)stride;
    }
    if (empty) set_compact(t, shape);
}

void py_tidy_strides(nk_tensor *t) { set_dims(t, t->shape, t->stride); }

/* Empty tensors point here, since exporters give them NULL, which in C means "not given". Aligned for every dtype. */
static _Alignas(16) char nothing[16];

static bool is_empty(const nk_tensor *t)
{
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] == 0) return true;
    }
    return false;
}

int py_describe(py_call *call, const DLTensor *dl, uint64_t flags, nk_tensor *t)
{
    if (flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) {
        return py_fail_at(PyExc_BufferError, t->name, t->index,
                          "one fp4 element per byte, expected them packed in pairs");
    }
    if (dl->ndim < 0 || dl->ndim > NK_MAX_DIMS) {
        return py_fail_at(PyExc_ValueError, t->name, t->index, "%d dimensions, expected at most %d", (int)dl->ndim,
                          NK_MAX_DIMS);
    }
    if (dl->ndim > 0 && !dl->shape) {
        return py_fail_at(PyExc_BufferError, t->name, t->index, "%d dimensions without a shape", (int)dl->ndim);
    }
    t->read_only = (flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
    t->ndim = dl->ndim;
    if (dl->strides)
        set_dims(t, dl->shape, dl->strides);
    else
        set_compact(t, dl->shape);
    /* As numbers: C leaves undefined what a pointer becomes that an offset takes out of the address space. */
    t->data = dl->byte_offset ? (void *)((uintptr_t)dl->data + dl->byte_offset) : dl->data;
    if (!t->data && is_empty(t)) t->data = nothing;
    if (!t->data) {
        return py_fail_at(PyExc_ValueError, t->name, t->index, "a tensor without memory, expected a real one");
    }
    if (set_device(call, t, dl->device) < 0 || set_dtype(t, dl->dtype) < 0) return -1;
    if (!call->like) call->device = t->device;
    return 0;
}
