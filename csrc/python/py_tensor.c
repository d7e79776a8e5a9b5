/* Reads Python objects as tensors by the DLPack exchange API, by address or by a DLPack capsule, and makes new ones. */
#include "py_tensor.h"

#include "py_address.h"
#include "py_args.h"
#include "py_describe.h"

#include <string.h>

#define VERSIONED "dltensor_versioned"
#define UNVERSIONED "dltensor"

/* ---------------------------------------------------------------------------------------------------------------- */
/* Exporters: how tensors of a type are read                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* NULL where the chain ends. Versions fall along it: one that goes round would have no end. */
static const DLPackExchangeAPIHeader *older(const DLPackExchangeAPIHeader *header)
{
    const DLPackVersion last = header->version;
    header = header->prev_api;
    if (!header || header->version.major > last.major) return NULL;
    return header->version.major < last.major || header->version.minor < last.minor ? header : NULL;
}

static bool is_complete(const DLPackExchangeAPI *api)
{
    return api->managed_tensor_allocator && api->managed_tensor_from_py_object_no_sync &&
           api->managed_tensor_to_py_object_no_sync && api->current_work_stream;
}

static const DLPackExchangeAPI *api_of_type(PyTypeObject *type)
{
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const DLPackExchangeAPIHeader *header = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        header = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    }
    Py_XDECREF(capsule); /* the table itself lives as long as the process */
    PyErr_Clear();
    while (header && header->version.major != DLPACK_MAJOR_VERSION)
        header = older(header);
    const DLPackExchangeAPI *api = (const void *)header;
    return api && is_complete(api) ? api : NULL;
}

/* Sets `api` where the type's own __dlpack__ does not come before it, and new references. */
static int ask_protocol(py_state *state, py_exporter *new)
{
    int has_own_dlpack;
    PyObject *protocol = py_imported(&state->protocol, "nvfp4kern.arrays", "protocol");
    PyObject *answer = protocol ? PyObject_CallFunctionObjArgs(protocol, new->type, NULL) : NULL;
    int failed = answer && PyArg_ParseTuple(answer, "pOO", &has_own_dlpack, &new->address, &new->written) ? 0 : -1;
    if (!failed) {
        new->api = has_own_dlpack ? NULL : api_of_type(new->type);
        new->address = new->address == Py_None ? NULL : Py_NewRef(new->address);
        new->written = new->written == Py_None ? NULL : Py_NewRef(new->written);
    }
    Py_XDECREF(answer);
    return failed;
}

static const py_exporter *remember_exporter(py_state *state, PyTypeObject *type)
{
    py_exporter new = {.type = type};
    if (ask_protocol(state, &new) < 0) return NULL;
    py_exporter *entry = &state->exporters[state->next_exporter], old = *entry;
    state->next_exporter = (state->next_exporter + 1) % PY_EXPORTER_TYPES;
    Py_INCREF((PyObject *)type);
    *entry = new;
    Py_XDECREF(old.address); /* last: these may run Python code */
    Py_XDECREF(old.written);
    Py_XDECREF((PyObject *)old.type);
    return entry;
}

/* How to read `object`; NULL with an exception set. The entry stays until Python code runs. */
static const py_exporter *find_exporter(py_state *state, PyObject *object)
{
    for (int i = 0; i < PY_EXPORTER_TYPES; i++) {
        if (state->exporters[i].type == Py_TYPE(object)) return &state->exporters[i];
    }
    return remember_exporter(state, Py_TYPE(object));
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* By the exchange API: C calls alone, no Python object is made                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

static void delete_managed(PyObject *capsule)
{
    DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, VERSIONED);
    if (managed->deleter) managed->deleter(managed);
}

static int from_capsule(py_call *call, PyObject *capsule, PyObject *owner, nk_tensor *t);

static int from_api(py_call *call, PyObject *object, const DLPackExchangeAPI *api, nk_tensor *t)
{
    if (api->dltensor_from_py_object_no_sync) {
        DLTensor dl = {0};
        if (api->dltensor_from_py_object_no_sync(object, &dl) < 0) return py_not_exported(t);
        if (py_describe(call, &dl, 0, t) < 0) return -1;
    } else {
        DLManagedTensorVersioned *managed = NULL;
        if (api->managed_tensor_from_py_object_no_sync(object, &managed) < 0) return py_not_exported(t);
        if (!managed) {
            return py_fail_at(PyExc_BufferError, t->name, t->index, "cannot be exported: the exchange API gave none");
        }
        PyObject *capsule = PyCapsule_New(managed, VERSIONED, delete_managed);
        if (!capsule && managed->deleter) managed->deleter(managed);
        if (!capsule || py_keep(call, capsule) < 0 || from_capsule(call, capsule, NULL, t) < 0) return -1;
    }
    if (t->device.type == NK_CPU || call->has_stream) return 0;
    call->has_stream = true;
    return api->current_work_stream(kDLCUDA, t->device.index, &call->exec.stream) < 0 ? py_not_exported(t) : 0;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* By a capsule                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The call borrows the capsule and keeps it: the capsule's own destructor ends the loan after the call. `owner` is the
 * object that made the capsule, or NULL. */
static int from_capsule(py_call *call, PyObject *capsule, PyObject *owner, nk_tensor *t)
{
    if (PyCapsule_IsValid(capsule, VERSIONED)) {
        const DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, VERSIONED);
        if (managed->version.major != DLPACK_MAJOR_VERSION) {
            return py_fail_at(PyExc_BufferError, t->name, t->index, "DLPack version %u.%u, expected %u.x",
                              managed->version.major, managed->version.minor, (unsigned)DLPACK_MAJOR_VERSION);
        }
        return py_describe(call, &managed->dl_tensor, managed->flags, t);
    }
    if (PyCapsule_IsValid(capsule, UNVERSIONED)) {
        const DLManagedTensor *managed = PyCapsule_GetPointer(capsule, UNVERSIONED);
        /* Such a capsule cannot say whether its memory may be written. */
        return py_describe(call, &managed->dl_tensor, DLPACK_FLAG_BITMASK_READ_ONLY, t);
    }
    const char *name = PyCapsule_CheckExact(capsule) ? PyCapsule_GetName(capsule) : NULL;
    if (name && strncmp(name, "used_", 5) == 0) {
        return py_fail_at(PyExc_BufferError, t->name, t->index, "a DLPack capsule that has been consumed already");
    }
    return py_fail_at(PyExc_TypeError, t->name, t->index, "%s%R, expected a DLPack capsule",
                      owner ? "__dlpack__ returned " : "", capsule);
}

/* Tells the exporter of a CUDA tensor the call's stream, so that it makes its data safe to read there. */
static int add_stream(py_call *call, PyObject *object, PyObject *kwargs)
{
    int failed = -1;
    long type, index;
    PyObject *stream = NULL, *device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    if (!device && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear(); /* an exporter without the method has no GPU memory */
        return 0;
    }
    if (!device) goto done;
    if (!PyTuple_Check(device) || !PyArg_ParseTuple(device, "ll", &type, &index)) {
        PyErr_Format(PyExc_TypeError, "__dlpack_device__ returned %R, expected (device type, index)", device);
        goto done;
    }
    if (type != kDLCUDA && type != kDLCUDAManaged) {
        failed = 0;
        goto done;
    }
    if (py_set_stream(call, object) < 0) goto done;
    /* DLPack writes the legacy default stream as 1. */
    stream = call->exec.stream ? PyLong_FromVoidPtr(call->exec.stream) : PyLong_FromLong(1);
    failed = stream ? PyDict_SetItemString(kwargs, "stream", stream) : -1;
done:
    Py_XDECREF(device);
    Py_XDECREF(stream);
    return failed;
}

/* object.__dlpack__(), with max_version where the exporter knows that argument. */
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
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return py_not_exported(t);
        PyErr_Clear();
        return py_wrong_type(object, t->name, t->index, "a tensor, an object with __dlpack__");
    }
    PyObject *capsule = export(call, object, method);
    Py_DECREF(method);
    if (!capsule) return py_from_unexported(call, object, t);
    return py_keep(call, capsule) < 0 ? -1 : from_capsule(call, capsule, object, t);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Arguments                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

int py_tensor(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t)
{
    t->name = name; /* py_describe() sets the rest, but for dimensions that the tensor does not have */
    t->index = index;
    if (object == Py_None) return py_fail_at(PyExc_TypeError, name, index, "None, expected a tensor");
    int failed;
    const py_exporter *exporter = find_exporter(call->state, object);
    if (!exporter) return -1;
    if (exporter->api)
        failed = from_api(call, object, exporter->api, t);
    else if (exporter->address)
        failed = py_from_address(call, object, exporter->address, t);
    else if (PyCapsule_CheckExact(object))
        failed = from_capsule(call, object, NULL, t);
    else
        failed = from_dlpack_method(call, object, t);
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

/* A __dlpack__ that raises is one: py_tensor() says what it raised. */
static bool is_tensor(const py_exporter *exporter, PyObject *object)
{
    if (exporter->api || exporter->address || PyCapsule_CheckExact(object)) return true;
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    bool raises = !method && !PyErr_ExceptionMatches(PyExc_AttributeError);
    PyErr_Clear();
    Py_XDECREF(method);
    return method || raises;
}

int py_scalar(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t, nk_scalar *scalar)
{
    if (!object) return 0;
    bool number = PyFloat_Check(object) || PyLong_Check(object);
    if (!number) { /* np.float32(2) is a number too, but so torch.Tensor claims to be */
        const py_exporter *exporter = find_exporter(call->state, object);
        if (!exporter) return -1;
        number = !is_tensor(exporter, object);
        if (number && !PyNumber_Check(object)) return py_wrong_type(object, name, index, "a number or a tensor");
    }
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
    return py_note_output(call, object);
}

int py_note_output(py_call *call, PyObject *object)
{
    const py_exporter *exporter = find_exporter(call->state, object);
    if (!exporter) return -1;
    if (!exporter->written || call->exec.dry_run) return 0;
    if (!call->written) call->written = Py_NewRef(exporter->written);
    if (!call->outputs) { /* a list takes longer, and most calls have one output */
        call->outputs = PyTuple_Pack(1, object);
        return call->outputs ? 0 : -1;
    }
    if (PyTuple_Check(call->outputs)) {
        PyObject *one = call->outputs;
        call->outputs = PyList_New(0);
        int failed = call->outputs ? PyList_Append(call->outputs, PyTuple_GetItem(one, 0)) : -1;
        Py_DECREF(one);
        if (failed) return -1;
    }
    return PyList_Append(call->outputs, object);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* New tensors                                                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct failure {
    bool no_memory;
    char text[256];
} failure;

/* An exporter may call this without the GIL, so it only notes the failure. */
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
        .dtype = py_dtype_to_dlpack(spec->dtype),
        .shape = shape,
    };
    failure failure = {.text = "no reason given"};
    DLManagedTensorVersioned *managed = NULL;
    void *object = NULL;
    if (api->managed_tensor_allocator(&prototype, &managed, &failure, note_failure) < 0 || !managed) {
        py_fail_at(failure.no_memory ? PyExc_MemoryError : PyExc_RuntimeError, spec->name, spec->index,
                   "cannot be allocated, %s", failure.text);
        return NULL;
    }
    if (api->managed_tensor_to_py_object_no_sync(managed, &object) < 0) object = NULL;
    if (!object && !PyErr_Occurred()) {
        py_fail_at(PyExc_RuntimeError, spec->name, spec->index, "cannot be allocated, %s", failure.text);
    }
    return object;
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
    result = PyObject_CallFunction(empty, "OsOs", call->like, py_dtype_name(spec->dtype), shape, spec->name);
done:
    Py_XDECREF(shape);
    return result;
}

PyObject *py_empty(py_call *call, const nk_tensor *spec, nk_tensor *t)
{
    const py_exporter *exporter = find_exporter(call->state, call->like);
    if (!exporter) return NULL;
    PyObject *object = exporter->api ? empty_from_api(exporter->api, spec) : empty_from_python(call, spec);
    if (object && py_tensor(call, object, spec->name, spec->index, t) < 0) Py_CLEAR(object);
    return object;
}
