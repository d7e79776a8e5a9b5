/* From Python arguments to C values. `object` NULL means that the argument was not given: the value stays as it is.
 * Every message begins with the argument's name. */
#ifndef NK_PY_ARGS_H
#define NK_PY_ARGS_H

#include "py_call.h"

/* Binds a fastcall's arguments to the names of `op`; fails as a Python function of that signature would. */
int py_parse(const py_operator *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **values);

int py_int(PyObject *object, const char *name, int64_t *value);
int py_bool(PyObject *object, const char *name, bool *value);      /* True or False, nothing that is merely true */
int py_bool_or_none(PyObject *object, const char *name, bool *value, bool *is_none);
int py_float(PyObject *object, const char *name, int32_t index, float *value); /* must not overflow */

/* Position of a word in `words`, which ends with NULL. */
int py_word(PyObject *object, const char *name, const char *const *words, int *choice);
int py_out_dtype(PyObject *object, nk_dtype *dtype);                     /* None: like not given */
int py_scale_layout(PyObject *object, nk_sf_layout *layout);             /* one word */
int py_scale_layouts(PyObject *object, nk_sf_layout *sfa, nk_sf_layout *sfb); /* one word or a pair */

/* A list or tuple as a tuple that lives as long as the call (borrowed); any length where `count` is negative. */
PyObject *py_items(py_call *call, PyObject *object, const char *name, Py_ssize_t count, const char *expected);

#endif
