#include "py_call.h"

#include "py_args.h"
#include "py_tensor.h"

int py_keep(py_call *call, PyObject *object)
{
    int failed = -1;
    if (!call->kept) call->kept = PyList_New(0);
    if (call->kept) failed = PyList_Append(call->kept, object);
    Py_DECREF(object);
    return failed;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Errors                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

int py_fail_at(PyObject *exception, const char *name, int32_t index, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyObject *text = PyUnicode_FromFormatV(format, values);
    va_end(values);
    if (!text) return -1;
    if (index < 0) PyErr_Format(exception, "%s: %U", name, text);
    else PyErr_Format(exception, "%s[%d]: %U", name, (int)index, text);
    Py_DECREF(text);
    return -1;
}

int py_not_exported(const nk_tensor *t)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) return -1;
    PyObject *type, *cause, *traceback, *error, *error_type, *error_traceback;
    PyErr_Fetch(&type, &cause, &traceback);
    PyErr_NormalizeException(&type, &cause, &traceback);
    if (traceback) PyException_SetTraceback(cause, traceback);
    /* The first line only: torch appends a C++ backtrace, which the cause keeps. */
    PyObject *text = PyObject_Str(cause), *lines = text ? PyUnicode_Splitlines(text, 0) : NULL;
    PyObject *first = lines && PyList_Size(lines) > 0 ? PyList_GetItem(lines, 0) : NULL;
    PyErr_Clear();
    py_fail_at(PyExc_BufferError, t->name, t->index, "cannot be exported: %S", first ? first : cause);
    Py_XDECREF(lines);
    Py_XDECREF(text);
    PyErr_Fetch(&error_type, &error, &error_traceback);
    PyErr_NormalizeException(&error_type, &error, &error_traceback);
    PyException_SetCause(error, cause); /* steals */
    PyErr_Restore(error_type, error, error_traceback);
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return -1;
}

int py_check(py_call *call, nk_status status)
{
    PyObject *exception = PyExc_SystemError; /* what has been dealt with before it comes here */
    switch (status) {
    case NK_OK: return 0;
    case NK_VALUE_ERROR: exception = PyExc_ValueError; break;
    case NK_TYPE_ERROR: exception = PyExc_TypeError; break;
    case NK_BACKEND_ERROR: exception = call->state->backend_error; break;
    case NK_NEEDS_WORKSPACE:
    case NK_DECLINED: break;
    }
    PyErr_SetString(exception, nk_status_message());
    return -1;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Running                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

#define WORKSPACE_ALIGNMENT 64

/* On the CPU a bytearray: an order of magnitude cheaper than asking a framework. */
static int allocate_workspace(py_call *call)
{
    int64_t bytes = call->exec.plan.workspace_bytes;
    nk_tensor t = {
        .name = "workspace", .index = -1, .dtype = NK_U8, .device = call->device, .ndim = 1, .shape = {bytes}};
    if (call->device.type == NK_CUDA) {
        PyObject *object = py_empty(call, &t, &t);
        if (!object || py_keep(call, object) < 0) return -1;
    } else {
        PyObject *object = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)bytes + WORKSPACE_ALIGNMENT);
        if (!object || py_keep(call, object) < 0) return -1;
        uintptr_t begin = (uintptr_t)PyByteArray_AsString(object);
        t.data = (void *)((begin + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT);
    }
    call->exec.workspace = t.data;
    call->exec.workspace_bytes = bytes;
    return 0;
}

int py_execute(py_call *call, py_op *op, const void *args)
{
    for (;;) {
        nk_status status;
        Py_BEGIN_ALLOW_THREADS
        status = op(args, &call->exec);
        Py_END_ALLOW_THREADS
        /* Asked twice is an operator's fault and becomes a SystemError. */
        if (status != NK_NEEDS_WORKSPACE || call->exec.workspace) return py_check(call, status);
        if (allocate_workspace(call) < 0) return -1;
    }
}

PyObject *py_imported(PyObject **cache, const char *module, const char *attribute)
{
    if (!*cache) {
        PyObject *imported = PyImport_ImportModule(module);
        if (!imported) return NULL;
        PyObject *value = PyObject_GetAttrString(imported, attribute);
        Py_DECREF(imported);
        if (!*cache) *cache = value; /* the import may have run other threads, which got here first */
        else Py_XDECREF(value);
    }
    return *cache;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* A call from end to end                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

static int set(PyObject *dict, const char *key, PyObject *value)
{
    int failed = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return failed;
}

/* Numbers that do not apply are zero in the plan and absent here. */
static PyObject *plan_dict(const nk_plan *plan)
{
    const struct {
        const char *key, *value;
    } texts[] = {{"backend", plan->backend}, {"kernel", plan->kernel}, {"why", plan->why}};
    const struct {
        const char *key;
        int64_t value;
        bool always;
    } numbers[] = {
        {"tile_m", plan->tile_m, false},   {"tile_n", plan->tile_n, false}, {"tile_k", plan->tile_k, false},
        {"grid", plan->grid, false},       {"threads", plan->threads, false}, {"stages", plan->stages, false},
        {"cluster", plan->cluster, false}, {"config", plan->config, false},
        {"workspace_bytes", plan->workspace_bytes, true},
    };
    PyObject *dict = PyDict_New();
    if (!dict) return NULL;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i].value && set(dict, texts[i].key, PyUnicode_FromString(texts[i].value)) < 0) goto failed;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!numbers[i].value && !numbers[i].always) continue;
        if (set(dict, numbers[i].key, PyLong_FromLongLong(numbers[i].value)) < 0) goto failed;
    }
    if (set(dict, "batch_invariant", PyBool_FromLong(plan->batch_invariant)) < 0) goto failed;
    return dict;
failed:
    Py_DECREF(dict);
    return NULL;
}

PyObject *py_invoke(PyObject *module, const py_operator *op, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames, bool explain)
{
    PyObject *values[PY_MAX_ARGS] = {NULL}, *result = NULL;
    py_call call = {.state = PyModule_GetState(module), .exec.dry_run = explain};
    bool failed = py_parse(op, args, nargs, kwnames, values) < 0 || op->run(&call, values, &result) < 0;
    if (failed || explain) Py_CLEAR(result);
    if (!failed && explain) result = plan_dict(&call.exec.plan);
    Py_XDECREF(call.kept);
    return result;
}
