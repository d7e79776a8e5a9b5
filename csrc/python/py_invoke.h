/* Makes a call from end to end: binds arguments to names, runs the operator without the GIL, shows the plan. */
#ifndef NK_PY_INVOKE_H
#define NK_PY_INVOKE_H

#include "py_state.h"

#define PY_MAX_ARGS 24

/* How an argument is read (py_read.c), and so of what type its member is. */
typedef enum py_kind {
    PY_OWN, /* by the operator's own code */
    PY_TENSOR,
    PY_OPTIONAL, /* a tensor, or None */
    PY_SCALAR,   /* a number or a tensor: an nk_scalar */
    PY_SCALAR_OR_NONE,
    PY_INT,
    PY_COUNT_OR_NONE, /* an int64_t that None leaves at its default */
    PY_FLOAT,
    PY_FLOAT_OR_NONE,
    PY_BOOL,
    PY_WORD, /* one of `words`: an enum in their order */
    PY_LAYOUT,
    PY_LAYOUTS,  /* two members, the second behind the first */
    PY_OUT,      /* the one output */
    PY_OUT_DTYPE /* behind PY_OUT */
} py_kind;

typedef struct py_parameter {
    const char *name;
    py_kind kind;
    size_t member; /* of the operator's struct, in bytes */
    const char *const *words;
} py_parameter;

typedef nk_status py_spec(const void *args, nk_tensor *spec);
typedef nk_status py_op(const void *args, nk_exec *exec);

/* An operator as Python sees it. A build makes these of build_tools/operators.py. A runner makes the call: `v` holds
 * the arguments in the order of the parameters, NULL where one was not given. */
typedef int py_runner(py_call *call, PyObject *const *v, PyObject **result);
typedef struct py_operator {
    const char *name;
    int required, positional;       /* how many arguments must come, and how many may come without a keyword */
    const py_parameter *parameters; /* the last has no name */
    const void *defaults;           /* the struct of the C API before arguments are read */
    size_t size;                    /* of that struct */
    int out;                        /* which parameter the one output is */
    py_spec *spec;                  /* of the one output */
    py_op *op;
    py_runner *run;
} py_operator;

/* A vectorcall of `op`. With `explain` it returns the plan as a dict and runs nothing. */
PyObject *py_invoke(PyObject *module, const py_operator *op, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames, bool explain);

/* Reads the settings, which another thread may change once the GIL is released. Then runs `op` of the C API without the
 * GIL, and allocates the workspace that it asks for. */
int py_execute(py_call *call, py_op *op, const void *args);

#endif
