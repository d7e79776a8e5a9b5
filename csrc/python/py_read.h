/* Reads the arguments of a call as the operator's table says, and makes calls that have one output. */
#ifndef NK_PY_READ_H
#define NK_PY_READ_H

#include "py_invoke.h"

#define PY_MAX_TENSORS 12 /* of one call, the output included */

#define PY_ARGS_BYTES 512 /* of the struct of any operator */

/* Fills *args, the struct of the C API, with what was given in `v`, and with the defaults. t[0] becomes the output, the
 * next ones the other tensors. Two layouts of one argument lie together in every struct. */
int py_read(py_call *call, PyObject *const *v, void *args, nk_tensor t[PY_MAX_TENSORS]);

/* Does the rest of a call whose one output the table names. */
int py_finish_read(py_call *call, PyObject *const *v, void *args, nk_tensor *t, PyObject **result);

/* Both, for operators without PY_OWN. */
py_runner py_run_one;

#endif
