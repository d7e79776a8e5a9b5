/* One call from Python: what its arguments, its outputs and its errors share.
 *
 * py_* functions that return int give 0, or -1 with a Python exception set. */
#ifndef NK_PY_CALL_H
#define NK_PY_CALL_H

#include <Python.h>

#include "nvfp4kern.h"

#include NK_DLPACK_H

#define PY_EXCHANGE_TYPES 8
#define PY_MAX_ARGS 16

/* A type and its DLPack exchange API; NULL where it has none. */
typedef struct py_exchange {
    PyTypeObject *type;
    const DLPackExchangeAPI *api;
} py_exchange;

typedef struct py_state {
    PyObject *backend_error;
    PyObject *nvfp4;          /* nvfp4kern.layout.NVFP4, NULL until the first quantize */
    PyObject *empty;          /* nvfp4kern.arrays.empty, NULL until needed */
    PyObject *current_stream; /* nvfp4kern.arrays.current_stream, NULL until needed */
    py_exchange exchange[PY_EXCHANGE_TYPES];
    int exchange_next; /* the entry to replace */
} py_state;

typedef struct py_call {
    py_state *state;
    PyObject *kept;    /* list of what must live until the call ends, or NULL */
    PyObject *like;    /* borrowed: its type allocates outputs and workspace */
    nk_device device;  /* of the first tensor */
    bool has_stream;   /* exec.stream is the stream of some tensor of this call */
    nk_exec exec;
} py_call;

/* Keeps a new reference until the call ends; steals it. */
int py_keep(py_call *call, PyObject *object);

/* "<name>: <text>", or "<name>[<index>]: <text>". Returns -1. */
int py_fail_at(PyObject *exception, const char *name, int32_t index, const char *format, ...);

/* Turns what a producer raised into a BufferError that names the argument. Returns -1. */
int py_not_exported(const nk_tensor *t);

/* nk_status to exception: the only place where that happens. */
int py_check(py_call *call, nk_status status);

/* Runs `op` without the GIL, with workspace where it asks for some. */
typedef nk_status py_op(const void *args, nk_exec *exec);
int py_execute(py_call *call, py_op *op, const void *args);

/* `*attribute` of nvfp4kern.<module>, imported once into *cache. */
PyObject *py_imported(PyObject **cache, const char *module, const char *attribute);

/* An operator as Python sees it. `v` holds its arguments in the order of `names`, NULL where one was not given. */
typedef struct py_operator {
    const char *name;
    int required, positional; /* the first arguments; the others are keyword-only */
    const char *names[PY_MAX_ARGS];
    int (*run)(py_call *call, PyObject *const *v, PyObject **result);
} py_operator;

PyObject *py_invoke(PyObject *module, const py_operator *op, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames, bool explain);

extern const py_operator py_quantize, py_dequantize, py_to_blocked, py_from_blocked;
extern const py_operator py_gemv, py_gemm, py_dual_gemm, py_grouped_gemm, py_route;

/* The competition's custom_kernel(data); `run` gets data as v[0]. */
extern const py_operator py_competition_gemv, py_competition_gemm, py_competition_dual_gemm, py_competition_group_gemm;

#endif
