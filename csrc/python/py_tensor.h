/* From Python objects to nk_tensor and back: DLPack lives here and nowhere else. */
#ifndef NK_PY_TENSOR_H
#define NK_PY_TENSOR_H

#include "py_call.h"

/* Describes `object` in *t. Its memory stays valid until the call ends, as the caller holds the object and the call
 * keeps whatever the object had to make. The first CUDA tensor gives the call its stream. */
int py_tensor(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t);

/* The same for an operator's argument: *pointer becomes t; the `optional` one leaves NULL for None or nothing. */
int py_argument(py_call *call, PyObject *object, const char *name, nk_tensor *t, const nk_tensor **pointer);
int py_optional(py_call *call, PyObject *object, const char *name, nk_tensor *t, const nk_tensor **pointer);

/* A number, or a tensor in *t. */
int py_scalar(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t, nk_scalar *scalar);

/* The caller's output, which from here on says what kind of object new memory is. */
int py_given_output(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t,
                    const nk_tensor **pointer);

/* A new object as `spec` says, of the type of call->like, described in *t (which may be `spec`). */
PyObject *py_empty(py_call *call, const nk_tensor *spec, nk_tensor *t);

/* Dimensions of size 1, and all of an empty tensor, get a compact tensor's strides: what producers say is noise. */
void py_tidy_strides(nk_tensor *t);

const char *py_dtype_name(nk_dtype dtype);

#endif
