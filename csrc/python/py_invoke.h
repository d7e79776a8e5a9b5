/* Makes a call from end to end: binds arguments to names, runs the operator without the GIL, shows the plan. */
#ifndef NK_PY_INVOKE_H
#define NK_PY_INVOKE_H

#include "py_state.h"

#define PY_MAX_ARGS 20

/* An operator as Python sees it. `v` holds its arguments in the order of `names`, NULL where one was not given. */
typedef struct py_operator {
    const char *name;
    int required, positional; /* how many arguments must come, and how many may come without a keyword */
    const char *names[PY_MAX_ARGS];
    int (*run)(py_call *call, PyObject *const *v, PyObject **result);
} py_operator;

/* A vectorcall of `op`. With `explain` it returns the plan as a dict and runs nothing. */
PyObject *py_invoke(PyObject *module, const py_operator *op, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames, bool explain);

/* Reads the settings, which another thread may change once the GIL is released. Then runs `op` of the C API without the
 * GIL, and allocates the workspace that it asks for. */
typedef nk_status py_op(const void *args, nk_exec *exec);
int py_execute(py_call *call, py_op *op, const void *args);

#endif
