/* Where results go: the caller's `out`, or new objects of the inputs' kind. */
#ifndef NK_PY_OUTPUT_H
#define NK_PY_OUTPUT_H

#include "py_tensor.h"

/* The dtype that an output is to have: out_dtype= where given, else that of `out` (NULL: none given), else what *dtype
 * says already. Sees that they agree. */
int py_output_dtype(PyObject *out_dtype, const nk_tensor *out, nk_dtype *dtype);

/* `out` where given; None: nothing is. */
int py_optional_output(py_call *call, PyObject *out, nk_tensor *t, const nk_tensor **pointer);

/* The same for an `out` of `least` or `most` items, `expected` in words: given[i], t[i] and *pointers[i] for each item,
 * untouched where it is None or missing. */
int py_optional_outputs(py_call *call, PyObject *out, const char *expected, Py_ssize_t least, Py_ssize_t most,
                        PyObject **given, nk_tensor *t, const nk_tensor **const *pointers);

/* One output, described in *t and at *pointer: *result becomes the given object, or a new one where there is none (and
 * nothing at all in a dry run). */
int py_output(py_call *call, PyObject *given, const nk_tensor *spec, nk_tensor *t, const nk_tensor **pointer,
              PyObject **result);

/* Does all that is left for an operator with one output, which is args' member at `pointer`. */
typedef nk_status py_spec(const void *args, nk_tensor *spec);
int py_finish(py_call *call, PyObject *given, py_spec *spec, py_op *op, const void *args, nk_tensor *t,
              const nk_tensor **pointer, PyObject **result);

/* The C API's pair of functions, with the types that py_finish takes. */
#define PY_ADAPT(name)                                                                                                 \
    static nk_status spec_##name(const void *args, nk_tensor *spec) { return nk_##name##_out(args, spec); }           \
    static nk_status run_##name(const void *args, nk_exec *exec) { return nk_##name(args, exec); }

#endif
