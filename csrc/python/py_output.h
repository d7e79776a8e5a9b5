/* Finds the outputs of a call: the caller's `out`, or new tensors that the inputs' framework allocates. */
#ifndef NK_PY_OUTPUT_H
#define NK_PY_OUTPUT_H

#include "py_invoke.h"

/* *dtype becomes the output's dtype: that of out_dtype= where given, else that of `out` (NULL where none was given),
 * else it stays. ValueError where out_dtype= and `out` disagree. */
int py_output_dtype(PyObject *out_dtype, const nk_tensor *out, nk_dtype *dtype);

/* Describes `out` in *t where it was given; leaves *pointer where it is None or was not. */
int py_optional_output(py_call *call, PyObject *out, nk_tensor *t, const nk_tensor **pointer);

/* The same for an `out` of `least` or `most` items, which `expected` names. given[i], t[i] and *pointers[i] belong to
 * item i and stay as they are where it is None or missing. */
int py_optional_outputs(py_call *call, PyObject *out, const char *expected, Py_ssize_t least, Py_ssize_t most,
                        PyObject **given, nk_tensor *t, const nk_tensor **const *pointers);

/* *result becomes the `given` object, or a new one as `spec` says, described in *t and at *pointer. A dry run makes no
 * new object and leaves *result. */
int py_output(py_call *call, PyObject *given, const nk_tensor *spec, nk_tensor *t, const nk_tensor **pointer,
              PyObject **result);

/* Does the rest of a call of one output, once its arguments are read: asks `spec` for the output's shape where none was
 * given, allocates it, runs `op`. `pointer` is the member of `args` for the output. */
int py_finish(py_call *call, PyObject *given, py_spec *spec, py_op *op, const void *args, nk_tensor *t,
              const nk_tensor **pointer, PyObject **result);

/* Defines spec_<name> and run_<name>: the pair of functions of the C API with the types that py_finish takes. */
#define PY_ADAPT(name)                                                                                                 \
    static nk_status spec_##name(const void *args, nk_tensor *spec) { return nk_##name##_out(args, spec); }           \
    static nk_status run_##name(const void *args, nk_exec *exec) { return nk_##name(args, exec); }

#endif
