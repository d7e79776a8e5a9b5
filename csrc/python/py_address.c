/* Reads tensors by their address: by what a function of nvfp4kern.arrays says of them. */
#include "py_address.h"

#include "py_args.h"
#include "py_describe.h"

#include <string.h>

int py_set_stream(py_call *call, PyObject *object)
{
    if (call->has_stream) return 0;
    PyObject *current = py_imported(&call->state->current_stream, "nvfp4kern.arrays", "current_stream");
    PyObject *number = current ? PyObject_CallFunctionObjArgs(current, object, NULL) : NULL;
    if (!number) return -1;
    call->exec.stream = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    if (PyErr_Occurred()) return -1;
    call->has_stream = true;
    return 0;
}

/* The first NK_MAX_DIMS items of a tuple. */
static int read_sizes(PyObject *tuple, int64_t sizes[NK_MAX_DIMS])
{
    Py_ssize_t count = PyTuple_Size(tuple);
    for (Py_ssize_t d = 0; d < count && d < NK_MAX_DIMS; d++) {
        sizes[d] = PyLong_AsLongLong(PyTuple_GetItem(tuple, d));
        if (sizes[d] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

/* `description` is the tuple that nvfp4kern.arrays' function returned. A last item is the owner of the memory, where
 * that is not the array: the call keeps it. */
static int from_description(py_call *call, PyObject *description, nk_tensor *t)
{
    unsigned long long data;
    const char *dtype, *device;
    PyObject *shape_tuple, *stride_tuple, *owner = NULL;
    int read_only;
    int64_t shape[NK_MAX_DIMS], strides[NK_MAX_DIMS];
    DLTensor dl = {.shape = shape, .strides = strides};
    if (!PyArg_ParseTuple(description, "KsO!O!sip|O", &data, &dtype, &PyTuple_Type, &shape_tuple, &PyTuple_Type,
                          &stride_tuple, &device, &dl.device.device_id, &read_only, &owner)) {
        return -1;
    }
    if (owner && py_keep(call, Py_NewRef(owner)) < 0) return -1;
    dl.data = (void *)(uintptr_t)data;
    dl.ndim = (int32_t)PyTuple_Size(shape_tuple);
    if (read_sizes(shape_tuple, shape) < 0 || read_sizes(stride_tuple, strides) < 0 ||
        py_dtype_named(t, dtype, &dl.dtype) < 0) {
        return -1;
    }
    if (strcmp(device, "cpu") == 0)
        dl.device.device_type = kDLCPU;
    else if (strcmp(device, "cuda") == 0)
        dl.device.device_type = kDLCUDA;
    else
        return py_fail_at(call->state->backend_error, t->name, t->index, "on %s, expected CPU or CUDA", device);
    return py_describe(call, &dl, read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0, t);
}

int py_from_address(py_call *call, PyObject *object, PyObject *function, nk_tensor *t)
{
    Py_INCREF(function); /* the entry that holds it may be replaced while it runs */
    PyObject *description = PyObject_CallFunctionObjArgs(function, object, NULL);
    Py_DECREF(function);
    if (!description) return py_not_exported(t);
    int failed = from_description(call, description, t);
    Py_DECREF(description);
    return failed || t->device.type == NK_CPU ? failed : py_set_stream(call, object);
}

int py_from_unexported(py_call *call, PyObject *object, nk_tensor *t)
{
    PyObject *type, *value, *traceback;
    if (!PyErr_ExceptionMatches(PyExc_BufferError)) return py_not_exported(t);
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *described = py_imported(&call->state->described, "nvfp4kern.arrays", "described");
    PyObject *answer = described ? PyObject_CallFunctionObjArgs(described, object, NULL) : NULL;
    if (answer == Py_None) {
        Py_DECREF(answer);
        PyErr_Restore(type, value, traceback);
        return py_not_exported(t);
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    if (!answer) return py_not_exported(t);
    int failed = from_description(call, answer, t);
    Py_DECREF(answer);
    return failed;
}
