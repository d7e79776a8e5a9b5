/* Declares what all files of the binding use: the module's state, the state of one call, and errors.
 *
 * py_* functions that return int return 0, or -1 with a Python exception set. */
#ifndef NK_PY_STATE_H
#define NK_PY_STATE_H

#include <Python.h>

#include "nvfp4kern.h"

#include NK_DLPACK_H

#define PY_EXPORTER_TYPES 8

/* How tensors of one Python type are read: by `api` where that is not NULL, else by `address` where it is not, else by
 * the type's __dlpack__. */
typedef struct py_exporter {
    PyTypeObject *type;
    const DLPackExchangeAPI *api;
    PyObject *address; /* what nvfp4kern.arrays.protocol says of the type, or NULL for each None there */
    PyObject *written; /* who wants to know which tensors a call has written */
} py_exporter;

typedef struct py_state {
    PyObject *backend_error;
    PyObject *nvfp4;                          /* nvfp4kern.layout.NVFP4, NULL until the first quantize */
    PyObject *apart, *layout_of;              /* of nvfp4kern.whole, NULL until needed */
    PyObject *empty;                          /* nvfp4kern.arrays.empty, NULL until needed */
    PyObject *current_stream;                 /* nvfp4kern.arrays.current_stream, NULL until needed */
    PyObject *protocol;                       /* nvfp4kern.arrays.protocol, NULL until needed */
    PyObject *described;                      /* nvfp4kern.arrays.described, NULL until needed */
    py_exporter exporters[PY_EXPORTER_TYPES]; /* the types seen last */
    int next_exporter;                        /* the entry that the next new type replaces */
} py_state;

typedef struct py_call {
    py_state *state;
    const struct py_operator *op;
    PyObject *kept;        /* list of what must live until the call ends, or NULL */
    PyObject *like;        /* borrowed: its type allocates outputs and workspace */
    PyObject *outputs;     /* tuple or list of the caller's tensors of whose change `written` is told, or NULL */
    PyObject *written;
    nk_device device;      /* of the first tensor */
    bool has_stream;       /* exec.stream is the stream of some tensor of this call */
    nk_exec exec;
} py_call;

/* py_enter_thread comes first in every function of the module: MemoryError where there is none for this thread's
 * variables, without which glibc ends the process. */
int py_init_threads(void);
int py_enter_thread(void);

/* Keeps a new reference until the call ends; steals it. */
int py_keep(py_call *call, PyObject *object);

/* Releases what an exporter lent, or NULL. Its deleter may run Python code, so an exception that is set waits. */
void py_release(PyObject *object);

/* Raises "<name>: <text>", or "<name>[<index>]: <text>" where index is not negative. Returns -1. */
int py_fail_at(PyObject *exception, const char *name, int32_t index, const char *format, ...);

/* Raises what an exporter raised as the cause of a BufferError that names the argument. Returns -1. */
int py_not_exported(const nk_tensor *t);

/* Raises the exception for `status`; every status becomes an exception here. */
int py_check(py_call *call, nk_status status);

/* Returns `attribute` of `module` (borrowed), which is imported once into *cache; NULL with an exception set. */
PyObject *py_imported(PyObject **cache, const char *module, const char *attribute);

#endif
