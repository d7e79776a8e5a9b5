/* Reads Python objects as tensors, and makes new ones. */
#ifndef NK_PY_TENSOR_H
#define NK_PY_TENSOR_H

#include "py_state.h"

/* Describes `object` in *t. Its memory stays valid until the call ends: the caller holds the object, and the call keeps
 * whatever the object made for the description. The first CUDA tensor sets the call's stream. */
int py_tensor(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t);

/* The same for an operator's argument: *pointer becomes t. py_optional leaves *pointer where the argument is None or
 * was not given. */
int py_argument(py_call *call, PyObject *object, const char *name, nk_tensor *t, const nk_tensor **pointer);
int py_optional(py_call *call, PyObject *object, const char *name, nk_tensor *t, const nk_tensor **pointer);

/* A number in *scalar, or a tensor in *t. */
int py_scalar(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t, nk_scalar *scalar);

/* The caller's output. From here on, new memory is allocated by its type. */
int py_given_output(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t,
                    const nk_tensor **pointer);

/* Notes that the call writes the caller's `object`, so that its framework is told. py_given_output does. */
int py_note_output(py_call *call, PyObject *object);

/* Returns a new object of the shape, dtype and device of `spec`, allocated by the type of call->like and described in
 * *t, which may be `spec`. NULL with an exception set. */
PyObject *py_empty(py_call *call, const nk_tensor *spec, nk_tensor *t);

#endif
