#include "py_tensor.h"

#include "py_args.h"

#include <string.h>

#define VERSIONED "dltensor_versioned"
#define UNVERSIONED "dltensor"

/* ---------------------------------------------------------------------------------------------------------------- */
/* DLTensor -> nk_tensor                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

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

const char *py_dtype_name(nk_dtype dtype) { return dtypes[dtype].name; }

static bool same_dtype(DLDataType x, DLDataType y)
{
    return memcmp(&x, &y, sizeof x) == 0; /* 4 bytes without gaps */
}

static int unknown_dtype(const nk_tensor *t, DLDataType dtype)
{
    static const char *const kinds[] = {[kDLInt] = "int",       [kDLUInt] = "uint",       [kDLFloat] = "float",
                                        [kDLBfloat] = "bfloat", [kDLComplex] = "complex", [kDLBool] = "bool"};
    const char *kind = dtype.code < sizeof kinds / sizeof kinds[0] ? kinds[dtype.code] : NULL;
    char name[32] = "unknown";
    if (kind) PyOS_snprintf(name, sizeof name, "%s%d", kind, dtype.bits);
    return py_fail_at(PyExc_TypeError, t->name, t->index,
                      "dtype %s (DLPack code %d, %d bits, %d lanes), expected uint8, float4_e2m1fn, float8_e4m3fn, "
                      "float16, bfloat16, float32 or int32",
                      name, dtype.code, dtype.bits, dtype.lanes);
}

/* fp4 that counts elements, [.., K], as JAX and ml_dtypes have it, becomes fp4 that counts bytes, [.., K/2]. */
static int halve_last_dim(nk_tensor *t)
{
    int last = t->ndim - 1;
    if (last < 0 || t->shape[last] % 2) {
        return py_fail_at(PyExc_ValueError, t->name, t->index, "an odd number of fp4 elements, expected two per byte");
    }
    bool packed = t->stride[last] == 1 || t->shape[last] == 0;
    for (int d = 0; d < last; d++) packed = packed && t->stride[d] % 2 == 0;
    if (!packed) {
        return py_fail_at(PyExc_ValueError, t->name, t->index,
                          "fp4 elements that are not packed along the last dimension");
    }
    t->shape[last] /= 2;
    for (int d = 0; d < last; d++) t->stride[d] /= 2;
    py_tidy_strides(t);
    return 0;
}

/* Out of line, so that set_dtype() becomes part of what calls it. */
static __attribute__((noinline)) int set_other_dtype(nk_tensor *t, DLDataType dtype)
{
    if (!same_dtype(dtype, (DLDataType){kDLFloat4_e2m1fn, 4, 1})) return unknown_dtype(t, dtype);
    t->dtype = NK_E2M1X2;
    return halve_last_dim(t);
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
    case kDLCUDAHost: t->device = (nk_device){NK_CPU, 0}; return 0;
    case kDLCUDA:
    case kDLCUDAManaged: t->device = (nk_device){NK_CUDA, device.device_id}; return 0;
    default:
        return py_fail_at(call->state->backend_error, t->name, t->index,
                          "on DLPack device type %d, expected CPU or CUDA", (int)device.device_type);
    }
}

/* What strides are where none are given, as DLPack before 1.2 allowed, or where without elements they mean nothing. */
static void set_compact(nk_tensor *t, const int64_t *shape)
{
    uint64_t inner = 1; /* unsigned: sizes that overflow are the operator's to report */
    for (int d = t->ndim - 1; d >= 0; d--) {
        t->shape[d] = shape[d];
        t->stride[d] = (int64_t)inner;
        inner *= shape[d] ? (uint64_t)shape[d] : 1;
    }
}

/* Where there is one element, frameworks put any stride, even 0. Both may be those of *t. */
static void set_dims(nk_tensor *t, const int64_t *shape, const int64_t *strides)
{
    bool empty = false;
    uint64_t inner = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        const int64_t size = shape[d];
        int64_t stride = (int64_t)inner;
        if ((uint64_t)size > 1) stride = strides[d];
        else empty |= size == 0;
        t->shape[d] = size;
        t->stride[d] = stride;
        inner = (uint64_t)size * (uint64_t)stride;
    }
    if (empty) set_compact(t, shape);
}

void py_tidy_strides(nk_tensor *t) { set_dims(t, t->shape, t->stride); }

/* What empty tensors point to: producers leave theirs NULL, which in C means "not given". Aligned for any dtype. */
static _Alignas(16) char nothing[16];

static bool is_empty(const nk_tensor *t)
{
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] == 0) return true;
    }
    return false;
}

/* Fills *t, whose name and index are there already. */
static inline int describe(py_call *call, const DLTensor *dl, uint64_t flags, nk_tensor *t)
{
    if (flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) {
        return py_fail_at(PyExc_BufferError, t->name, t->index,
                          "one fp4 element per byte, expected them packed in pairs");
    }
    if (dl->ndim < 0 || dl->ndim > NK_MAX_DIMS) {
        return py_fail_at(PyExc_ValueError, t->name, t->index, "%d dimensions, expected at most %d", (int)dl->ndim,
                          NK_MAX_DIMS);
    }
    t->read_only = (flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
    t->ndim = dl->ndim;
    if (dl->strides) set_dims(t, dl->shape, dl->strides);
    else set_compact(t, dl->shape);
    t->data = dl->byte_offset ? (char *)dl->data + dl->byte_offset : dl->data;
    if (!t->data && is_empty(t)) t->data = nothing;
    if (!t->data) {
        return py_fail_at(PyExc_ValueError, t->name, t->index, "a tensor without memory, expected a real one");
    }
    if (set_device(call, t, dl->device) < 0 || set_dtype(t, dl->dtype) < 0) return -1;
    if (!call->like) call->device = t->device;
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The C exchange API: no Python object is made                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

static const DLPackExchangeAPI *api_of_type(PyTypeObject *type)
{
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const DLPackExchangeAPIHeader *header = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        header = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    }
    Py_XDECREF(capsule); /* the table itself lives as long as the process */
    PyErr_Clear();
    while (header && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
    return (const DLPackExchangeAPI *)(const void *)header;
}

static const DLPackExchangeAPI *remember_api(py_state *state, PyTypeObject *type)
{
    const DLPackExchangeAPI *api = api_of_type(type);
    py_exchange *entry = &state->exchange[state->exchange_next];
    state->exchange_next = (state->exchange_next + 1) % PY_EXCHANGE_TYPES;
    PyTypeObject *old = entry->type;
    *entry = (py_exchange){(PyTypeObject *)Py_NewRef((PyObject *)type), api};
    Py_XDECREF((PyObject *)old); /* last: it may run Python code */
    return api;
}

/* NULL where the type has none: not an error. */
static const DLPackExchangeAPI *find_api(py_state *state, PyObject *object)
{
    for (int i = 0; i < PY_EXCHANGE_TYPES; i++) {
        if (state->exchange[i].type == Py_TYPE(object)) return state->exchange[i].api;
    }
    return remember_api(state, Py_TYPE(object));
}

static void delete_managed(PyObject *capsule)
{
    DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, VERSIONED);
    if (managed->deleter) managed->deleter(managed);
}

static int from_capsule(py_call *call, PyObject *capsule, nk_tensor *t);

static int from_api(py_call *call, PyObject *object, const DLPackExchangeAPI *api, nk_tensor *t)
{
    if (api->dltensor_from_py_object_no_sync) {
        DLTensor dl;
        if (api->dltensor_from_py_object_no_sync(object, &dl) < 0) return py_not_exported(t);
        if (describe(call, &dl, 0, t) < 0) return -1;
    } else {
        DLManagedTensorVersioned *managed;
        if (api->managed_tensor_from_py_object_no_sync(object, &managed) < 0) return py_not_exported(t);
        PyObject *capsule = PyCapsule_New(managed, VERSIONED, delete_managed);
        if (!capsule && managed->deleter) managed->deleter(managed);
        if (!capsule || py_keep(call, capsule) < 0 || from_capsule(call, capsule, t) < 0) return -1;
    }
    if (t->device.type == NK_CPU || call->has_stream) return 0;
    call->has_stream = true;
    return api->current_work_stream(kDLCUDA, t->device.index, &call->exec.stream);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Capsules                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The capsule is borrowed, not consumed: the call keeps it, and its own destructor ends the loan afterwards. */
static int from_capsule(py_call *call, PyObject *capsule, nk_tensor *t)
{
    if (PyCapsule_IsValid(capsule, VERSIONED)) {
        const DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, VERSIONED);
        if (managed->version.major != DLPACK_MAJOR_VERSION) {
            return py_fail_at(PyExc_BufferError, t->name, t->index, "DLPack version %u.%u, expected %u.x",
                              managed->version.major, managed->version.minor, (unsigned)DLPACK_MAJOR_VERSION);
        }
        return describe(call, &managed->dl_tensor, managed->flags, t);
    }
    if (PyCapsule_IsValid(capsule, UNVERSIONED)) {
        const DLManagedTensor *managed = PyCapsule_GetPointer(capsule, UNVERSIONED);
        return describe(call, &managed->dl_tensor, DLPACK_FLAG_BITMASK_READ_ONLY, t); /* it cannot say, so assume it */
    }
    const char *name = PyCapsule_CheckExact(capsule) ? PyCapsule_GetName(capsule) : NULL;
    if (name && strncmp(name, "used_", 5) == 0) {
        return py_fail_at(PyExc_BufferError, t->name, t->index, "a DLPack capsule that has been consumed already");
    }
    return py_fail_at(PyExc_TypeError, t->name, t->index, "%R, expected a DLPack capsule", capsule);
}

/* With capsules, CUDA streams are settled here: the call runs on the current stream of the first CUDA tensor's
 * framework (the legacy default stream where nobody knows), and every producer is told to make its data safe there. */
static int add_stream(py_call *call, PyObject *object, PyObject *kwargs)
{
    int failed = -1;
    long type, index;
    PyObject *stream = NULL, *device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    if (!device && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear(); /* whoever has GPU memory has the method too */
        return 0;
    }
    if (!device || !PyArg_ParseTuple(device, "ll", &type, &index)) goto done;
    if (type != kDLCUDA && type != kDLCUDAManaged) {
        failed = 0;
        goto done;
    }
    if (!call->has_stream) {
        py_state *state = call->state;
        PyObject *current = py_imported(&state->current_stream, "nvfp4kern.arrays", "current_stream");
        PyObject *number = current ? PyObject_CallFunctionObjArgs(current, object, NULL) : NULL;
        if (!number) goto done;
        call->exec.stream = PyLong_AsVoidPtr(number);
        Py_DECREF(number);
        if (PyErr_Occurred()) goto done;
        call->has_stream = true;
    }
    /* DLPack writes the legacy default stream as 1. */
    stream = call->exec.stream ? PyLong_FromVoidPtr(call->exec.stream) : PyLong_FromLong(1);
    failed = stream ? PyDict_SetItemString(kwargs, "stream", stream) : -1;
done:
    Py_XDECREF(device);
    Py_XDECREF(stream);
    return failed;
}

/* object.__dlpack__(), with max_version where the producer knows it. */
static PyObject *export(py_call *call, PyObject *object, PyObject *method)
{
    PyObject *capsule = NULL, *positional = PyTuple_New(0), *kwargs = PyDict_New(), *version = NULL;
    if (!positional || !kwargs || add_stream(call, object, kwargs) < 0) goto done;
    version = Py_BuildValue("(ii)", DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
    if (!version || PyDict_SetItemString(kwargs, "max_version", version) < 0) goto done;
    capsule = PyObject_Call(method, positional, kwargs);
    if (capsule || !PyErr_ExceptionMatches(PyExc_TypeError)) goto done;
    PyErr_Clear();
    if (PyDict_DelItemString(kwargs, "max_version") < 0) goto done;
    capsule = PyObject_Call(method, positional, kwargs);
done:
    Py_XDECREF(positional);
    Py_XDECREF(kwargs);
    Py_XDECREF(version);
    return capsule;
}

static int from_dlpack_method(py_call *call, PyObject *object, nk_tensor *t)
{
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    if (!method) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
        PyErr_Clear();
        PyObject *type = PyType_GetName(Py_TYPE(object));
        if (!type) return -1;
        py_fail_at(PyExc_TypeError, t->name, t->index, "%U has no __dlpack__, expected a tensor", type);
        Py_DECREF(type);
        return -1;
    }
    PyObject *capsule = export(call, object, method);
    Py_DECREF(method);
    if (!capsule) return py_not_exported(t);
    return py_keep(call, capsule) < 0 ? -1 : from_capsule(call, capsule, t);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Arguments                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

int py_tensor(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t)
{
    t->name = name; /* describe() sets the rest; dimensions that a tensor does not have stay as they are */
    t->index = index;
    if (object == Py_None) return py_fail_at(PyExc_TypeError, name, index, "None, expected a tensor");
    int failed;
    const DLPackExchangeAPI *api = find_api(call->state, object);
    if (api) failed = from_api(call, object, api, t);
    else if (PyCapsule_CheckExact(object)) failed = from_capsule(call, object, t);
    else failed = from_dlpack_method(call, object, t);
    if (failed) return -1;
    if (!call->like) call->like = object;
    return 0;
}

int py_argument(py_call *call, PyObject *object, const char *name, nk_tensor *t, const nk_tensor **pointer)
{
    if (py_tensor(call, object, name, -1, t) < 0) return -1;
    *pointer = t;
    return 0;
}

int py_optional(py_call *call, PyObject *object, const char *name, nk_tensor *t, const nk_tensor **pointer)
{
    return object && object != Py_None ? py_argument(call, object, name, t, pointer) : 0;
}

static bool has_dlpack(py_state *state, PyObject *object)
{
    if (find_api(state, object) || PyCapsule_CheckExact(object)) return true;
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    PyErr_Clear();
    Py_XDECREF(method);
    return method != NULL;
}

int py_scalar(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t, nk_scalar *scalar)
{
    if (!object) return 0;
    /* Numbers first: they are cheap to tell. np.float32(2) is a number too, but a torch.Tensor claims to be one. */
    bool number = PyFloat_Check(object) || PyLong_Check(object) || !has_dlpack(call->state, object);
    if (number) return py_float(object, name, index, &scalar->value);
    if (py_tensor(call, object, name, index, t) < 0) return -1;
    scalar->tensor = t;
    return 0;
}

int py_given_output(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t,
                    const nk_tensor **pointer)
{
    if (py_tensor(call, object, name, index, t) < 0) return -1;
    call->like = object;
    *pointer = t;
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* New tensors                                                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct failure {
    bool no_memory;
    char text[256];
} failure;

/* A producer may call this without the GIL, so it only takes notes. */
static void note_failure(void *context, const char *kind, const char *message)
{
    failure *f = context;
    f->no_memory = strcmp(kind, "MemoryError") == 0;
    PyOS_snprintf(f->text, sizeof f->text, "%s", message);
}

static PyObject *empty_from_api(const DLPackExchangeAPI *api, const nk_tensor *spec)
{
    int64_t shape[NK_MAX_DIMS];
    memcpy(shape, spec->shape, sizeof shape);
    DLTensor prototype = {
        .device = {spec->device.type == NK_CPU ? kDLCPU : kDLCUDA, spec->device.index},
        .ndim = spec->ndim,
        .dtype = dtypes[spec->dtype].dl,
        .shape = shape,
    };
    failure failure = {.text = "no reason given"};
    DLManagedTensorVersioned *managed = NULL;
    void *object = NULL;
    if (api->managed_tensor_allocator(&prototype, &managed, &failure, note_failure) < 0) {
        py_fail_at(failure.no_memory ? PyExc_MemoryError : PyExc_RuntimeError, spec->name, spec->index,
                   "cannot be allocated, %s", failure.text);
        return NULL;
    }
    return api->managed_tensor_to_py_object_no_sync(managed, &object) < 0 ? NULL : object;
}

static PyObject *empty_from_python(py_call *call, const nk_tensor *spec)
{
    PyObject *empty = py_imported(&call->state->empty, "nvfp4kern.arrays", "empty");
    PyObject *shape = PyTuple_New(spec->ndim), *result = NULL;
    if (!empty || !shape) goto done;
    for (int d = 0; d < spec->ndim; d++) {
        PyObject *size = PyLong_FromLongLong(spec->shape[d]);
        if (!size || PyTuple_SetItem(shape, d, size) < 0) goto done;
    }
    result = PyObject_CallFunction(empty, "OsOs", call->like, dtypes[spec->dtype].name, shape, spec->name);
done:
    Py_XDECREF(shape);
    return result;
}

PyObject *py_empty(py_call *call, const nk_tensor *spec, nk_tensor *t)
{
    const DLPackExchangeAPI *api = find_api(call->state, call->like);
    PyObject *object = api ? empty_from_api(api, spec) : empty_from_python(call, spec);
    if (object && py_tensor(call, object, spec->name, spec->index, t) < 0) Py_CLEAR(object);
    return object;
}
