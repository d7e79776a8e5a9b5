/* Arguments and results of calls that return NVFP4(data, scales, global_scale). */
#ifndef NK_PY_NVFP4_H
#define NK_PY_NVFP4_H

#include "py_state.h"

/* Reads None, a number or a 1-element tensor, or where `amax` is not NULL "amax" or "token", which sets both. */
int py_global_scale(py_call *call, PyObject *object, nk_tensor *t, nk_scalar *global_scale, bool *amax,
                    bool *per_token);

/* Reads global_scale_inverse, None or what takes the place of a *global_scale that was read. */
int py_global_scale_inverse(py_call *call, PyObject *object, nk_tensor *t, nk_scalar *global_scale, bool *inverse);

/* The dtype of new codes in *dtype, which the `codes` of an `out` given must agree with. */
int py_codes_dtype(PyObject *object, const nk_tensor *codes, nk_dtype *dtype);

/* NVFP4 of the tensors outputs[0] and outputs[1]. Its global scale is the one given, or else 1 / inverse, or the float
 * 1. Those that are None are not given. `layout` is a word, or NULL where it is not to know its layout. */
PyObject *py_nvfp4(py_call *call, PyObject *const outputs[2], PyObject *global_scale, PyObject *inverse,
                   const char *layout);

#endif
