/* Reads the arguments of a call as the operator's table says, and makes calls that have one output. */
#ifndef NK_PY_READ_H
#define NK_PY_READ_H

#include "py_invoke.h"

#define PY_MAX_TENSORS 12 /* of one call, the output included */

/* Room for the struct of any operator; every one asserts that it fits. */
#define PY_ARGS_BYTES 512
#define PY_ARGS_ALIGNMENT 16
#define PY_ARGS_FIT(type)                                                                           \
    _Static_assert(sizeof(type) <= PY_ARGS_BYTES && _Alignof(type) <= PY_ARGS_ALIGNMENT,            \
                   "py_run_one has room for the arguments")

/* The two layouts of a struct, which py_read fills as one argument, lie together. */
#define PY_LAYOUTS_LIE(type)                                                                        \
    _Static_assert(offsetof(type, sfb_layout) == offsetof(type, sfa_layout) + sizeof(nk_sf_layout), \
                   "sfb_layout is behind sfa_layout")

/* Fills *args, the struct of the C API, with what was given in `v`, and with the defaults. t[0] becomes the output, the
 * next ones the other tensors. */
int py_read(py_call *call, PyObject *const *v, void *args, nk_tensor t[PY_MAX_TENSORS]);

/* Does the rest of a call whose one output the table names. */
int py_finish_read(py_call *call, PyObject *const *v, void *args, nk_tensor *t, PyObject **result);

/* Both, for operators without PY_OWN. */
py_runner py_run_one;

#endif
