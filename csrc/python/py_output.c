/* Finds the outputs of a call: the caller's `out`, or new tensors that the inputs' framework allocates. */
#include "py_output.h"

#include "py_args.h"
#include "py_describe.h"
#include "py_tensor.h"

static bool is_given(PyObject *object) { return object && object != Py_None; }

int py_output_dtype(PyObject *out_dtype, const nk_tensor *out, nk_dtype *dtype)
{
    if (py_out_dtype(out_dtype, dtype) < 0) return -1;
    if (!out) return 0;
    if (is_given(out_dtype) && out->dtype != *dtype) {
        return py_fail_at(PyExc_ValueError, "out_dtype", -1, "%s, but out has dtype %s", py_dtype_name(*dtype),
                          py_dtype_name_of(out));
    }
    *dtype = out->dtype;
    return 0;
}

int py_optional_output(py_call *call, PyObject *out, nk_tensor *t, const nk_tensor **pointer)
{
    return is_given(out) ? py_given_output(call, out, "out", -1, t, pointer) : 0;
}

int py_optional_outputs(py_call *call, PyObject *out, const char *expected, Py_ssize_t least, Py_ssize_t most,
                        PyObject **given, nk_tensor *t, const nk_tensor **const *pointers)
{
    if (!is_given(out)) return 0;
    PyObject *items = py_items(call, out, "out", -1, expected);
    if (!items) return -1;
    Py_ssize_t count = PyTuple_Size(items);
    if (count != least && count != most) {
        return py_fail_at(PyExc_ValueError, "out", -1, "%zd items, expected %s", count, expected);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GetItem(items, i);
        if (item == Py_None) continue;
        if (py_given_output(call, item, "out", (int32_t)i, &t[i], pointers[i]) < 0) return -1;
        given[i] = item;
    }
    return 0;
}

int py_output(py_call *call, PyObject *given, const nk_tensor *spec, nk_tensor *t, const nk_tensor **pointer,
              PyObject **result)
{
    if (is_given(given)) {
        *result = Py_NewRef(given);
    } else if (!call->exec.dry_run) {
        *result = py_empty(call, spec, t);
        if (!*result) return -1;
        *pointer = t;
    }
    return 0;
}

int py_finish(py_call *call, PyObject *given, py_spec *spec_of, py_op *op, const void *args, nk_tensor *t,
              const nk_tensor **pointer, PyObject **result)
{
    nk_tensor spec;
    bool wanted = !is_given(given) && !call->exec.dry_run;
    if (wanted && py_check(call, spec_of(args, &spec)) < 0) return -1;
    if (py_output(call, given, &spec, t, pointer, result) < 0) return -1;
    return py_execute(call, op, args);
}
