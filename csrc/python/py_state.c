/* Keeps a call's references, raises its exceptions, and imports the Python objects that the module needs. */
#include "py_state.h"

#include <pthread.h>

/* ---------------------------------------------------------------------------------------------------------------- */
/* Threads                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* More than this library's thread-local variables take, and less than malloc takes from the system each time. */
#define THREAD_LOCAL_BYTES ((size_t)96 << 10)

static pthread_key_t entered;

int py_init_threads(void)
{
    static bool done; /* under the GIL */
    if (!done && pthread_key_create(&entered, NULL) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    done = true;
    return 0;
}

int py_enter_thread(void)
{
    if (pthread_getspecific(entered)) return 0;
    void *probe = PyMem_Malloc(THREAD_LOCAL_BYTES); /* by malloc, as glibc's own */
    bool failed = !probe || pthread_setspecific(entered, &entered) != 0;
    PyMem_Free(probe);
    if (!failed) (void)nk_status_message(); /* now they are allocated, all together */
    else PyErr_NoMemory();
    return failed ? -1 : 0;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* References                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

int py_keep(py_call *call, PyObject *object)
{
    int failed = -1;
    if (!call->kept) call->kept = PyList_New(0);
    if (call->kept) failed = PyList_Append(call->kept, object);
    py_release(object);
    return failed;
}

void py_release(PyObject *object)
{
    PyObject *type, *value, *traceback;
    if (!object) return;
    PyErr_Fetch(&type, &value, &traceback);
    Py_DECREF(object);
    if (PyErr_Occurred()) PyErr_WriteUnraisable(NULL);
    PyErr_Restore(type, value, traceback);
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
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "the exporter failed without an exception");
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) return -1;
    PyObject *type, *cause, *traceback, *error, *error_type, *error_traceback;
    PyErr_Fetch(&type, &cause, &traceback);
    PyErr_NormalizeException(&type, &cause, &traceback);
    if (traceback) PyException_SetTraceback(cause, traceback);
    /* The message quotes the first line alone: torch appends a C++ backtrace, which the cause keeps. */
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
    PyObject *exception = PyExc_SystemError; /* for a status that an operator never returns to the binding */
    switch (status) {
    case NK_OK: return 0;
    case NK_VALUE_ERROR: exception = PyExc_ValueError; break;
    case NK_TYPE_ERROR: exception = PyExc_TypeError; break;
    case NK_BACKEND_ERROR: exception = call->state->backend_error; break;
    case NK_NEEDS_WORKSPACE:
    case NK_INTERRUPTED: return -1; /* a function that the call asked has raised */
    case NK_DECLINED: break;
    }
    PyErr_SetString(exception, nk_status_message());
    return -1;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Imports                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

PyObject *py_imported(PyObject **cache, const char *module, const char *attribute)
{
    if (!*cache) {
        PyObject *imported = PyImport_ImportModule(module);
        if (!imported) return NULL;
        PyObject *value = PyObject_GetAttrString(imported, attribute);
        Py_DECREF(imported);
        if (!*cache) *cache = value; /* other threads may have run during the import and set it */
        else Py_XDECREF(value);
    }
    return *cache;
}
