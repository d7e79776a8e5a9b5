/* Arguments and results of calls that return NVFP4(data, scales, global_scale). */
#include "py_nvfp4.h"

#include "py_args.h"
#include "py_describe.h"
#include "py_tensor.h"

#include <string.h>

#define FLOAT_INFINITY_BITS 0x7f800000u

static int read_positive(py_call *call, PyObject *object, const char *name, nk_tensor *t, nk_scalar *scalar)
{
    *scalar = (nk_scalar){0};
    if (py_scalar(call, object, name, -1, t, scalar) < 0) return -1;
    if (scalar->tensor) return 0;
    uint32_t bits; /* not the value: the caller's thread may treat denormals as zero */
    memcpy(&bits, &scalar->value, sizeof bits);
    if (bits > 0 && bits < FLOAT_INFINITY_BITS) return 0;
    return py_fail_at(PyExc_ValueError, name, -1, "%R, expected a finite number above 0 in float32", object);
}

int py_global_scale(py_call *call, PyObject *object, nk_tensor *t, nk_scalar *global_scale, bool *amax, bool *per_token)
{
    static const char *const words[] = {"amax", "token", NULL};
    int word;
    if (!object || object == Py_None) return 0;
    if (PyUnicode_Check(object)) {
        if (!amax) {
            return py_fail_at(PyExc_ValueError, "global_scale", -1, "%R, expected None, a number or a tensor", object);
        }
        if (py_word(object, "global_scale", words, &word) < 0) return -1;
        *amax = true;
        *per_token = word == 1;
        return 0;
    }
    return read_positive(call, object, "global_scale", t, global_scale);
}

int py_global_scale_inverse(py_call *call, PyObject *object, nk_tensor *t, nk_scalar *global_scale, bool *inverse)
{
    if (!object || object == Py_None) return 0;
    *inverse = true;
    return read_positive(call, object, "global_scale_inverse", t, global_scale);
}

int py_codes_dtype(PyObject *object, const nk_tensor *codes, nk_dtype *dtype)
{
    if (py_data_dtype(object, dtype) < 0) return -1;
    if (!object || object == Py_None || !codes || codes->dtype == *dtype) return 0;
    return py_fail_at(PyExc_ValueError, "data_dtype", -1, "%s, but out[0] has dtype %s", py_dtype_name(*dtype),
                      py_dtype_name_of(codes));
}

static bool is_given(PyObject *object) { return object && object != Py_None; }

PyObject *py_nvfp4(py_call *call, PyObject *const outputs[2], PyObject *global_scale, PyObject *inverse,
                   const char *layout)
{
    PyObject *type = py_imported(&call->state->nvfp4, "nvfp4kern.layout", "NVFP4"), *result = NULL;
    PyObject *one = PyFloat_FromDouble(1), *scale;
    if (is_given(global_scale)) scale = Py_NewRef(global_scale);
    else if (one && is_given(inverse)) scale = PyNumber_TrueDivide(one, inverse);
    else scale = Py_XNewRef(one);
    Py_XDECREF(one);
    if (type && scale) result = PyObject_CallFunction(type, "OOOz", outputs[0], outputs[1], scale, layout);
    Py_XDECREF(scale);
    return result;
}
