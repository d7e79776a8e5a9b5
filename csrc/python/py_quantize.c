/* Reads what is special about the arguments and results of quantize, dequantize and gemm: they have NVFP4 whole. */
#include "py_args.h"
#include "py_nvfp4.h"
#include "py_output.h"
#include "py_read.h"
#include "py_tensor.h"

#include <py_operators.h>

#include <string.h>

static nk_status run_quantize(const void *args, nk_exec *exec) { return nk_quantize(args, exec); }

/* ---------------------------------------------------------------------------------------------------------------- */
/* quantize                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

int py_run_quantize(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_tensor inputs[PY_MAX_TENSORS], global_scale, inverse, t[NK_QUANTIZE_OUTPUTS], specs[NK_QUANTIZE_OUTPUTS];
    nk_quantize_args args;
    const nk_tensor **pointers[] = {&args.codes, &args.scales, &args.amax_out};
    PyObject *given[NK_QUANTIZE_OUTPUTS] = {NULL}, *outputs[NK_QUANTIZE_OUTPUTS] = {NULL};
    nk_dtype data_dtype = NK_E2M1X2;
    int count, failed = -1;
    if (py_read(call, v, &args, inputs) < 0 ||
        py_global_scale(call, v[PY_QUANTIZE_GLOBAL_SCALE], &global_scale, &args.global_scale, &args.amax,
                        &args.per_token) < 0 ||
        py_global_scale_inverse(call, v[PY_QUANTIZE_GLOBAL_SCALE_INVERSE], &inverse, &args.global_scale,
                                &args.inverse) < 0 ||
        py_optional_outputs(call, v[PY_QUANTIZE_OUT],
                            args.amax ? "(data, scales) or (data, scales, global_scale)" : "(data, scales)", 2,
                            args.amax ? 3 : 2, given, t, pointers) < 0 ||
        py_codes_dtype(v[PY_QUANTIZE_DATA_DTYPE], args.codes, &data_dtype) < 0 ||
        py_check(call, nk_quantize_out(&args, specs, &count)) < 0) {
        return -1;
    }
    specs[0].dtype = data_dtype;
    for (int i = 0; i < count; i++) {
        if (py_output(call, given[i], &specs[i], &t[i], pointers[i], &outputs[i]) < 0) goto done;
    }
    if (py_execute(call, run_quantize, &args) < 0) goto done;
    const char *layout = args.offsets ? NULL : args.layout == NK_SF_LINEAR ? "linear" : "blocked";
    if (!call->exec.dry_run)
        *result = py_nvfp4(call, outputs, outputs[2] ? outputs[2] : v[PY_QUANTIZE_GLOBAL_SCALE],
                           v[PY_QUANTIZE_GLOBAL_SCALE_INVERSE], layout);
    failed = *result || call->exec.dry_run ? 0 : -1;
done:
    for (int i = 0; i < NK_QUANTIZE_OUTPUTS; i++)
        Py_XDECREF(outputs[i]);
    return failed;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* dequantize                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* scale_layout=, or what q knows; a plain tuple or a list knows nothing. */
static int read_layout(py_call *call, PyObject *q, PyObject *given, nk_sf_layout *layout)
{
    if (PyTuple_CheckExact(q) || PyList_Check(q)) return py_scale_layout(given, layout);
    PyObject *layout_of = py_imported(&call->state->layout_of, "nvfp4kern.whole", "layout_of"), *word = NULL;
    if (layout_of) word = PyObject_CallFunction(layout_of, "OsO", q, "q", given ? given : Py_None);
    return word && py_keep(call, word) == 0 ? py_scale_layout(word, layout) : -1;
}

int py_run_dequantize(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_tensor t[PY_MAX_TENSORS], codes, scales, global_scale;
    nk_dequantize_args args;
    PyObject *q = py_items(call, v[PY_DEQUANTIZE_Q], "q", 3, "NVFP4(data, scales, global_scale)");
    if (!q) return -1;
    PyObject *scale = PyTuple_GetItem(q, 2);
    if (scale == Py_None) scale = NULL; /* means 1, as for quantize */
    if (py_read(call, v, &args, t) < 0 ||
        read_layout(call, v[PY_DEQUANTIZE_Q], v[PY_DEQUANTIZE_SCALE_LAYOUT], &args.layout) < 0 ||
        py_argument(call, PyTuple_GetItem(q, 0), "q.data", &codes, &args.codes) < 0 ||
        py_optional(call, PyTuple_GetItem(q, 1), "q.scales", &scales, &args.scales) < 0 ||
        py_scalar(call, scale, "q.global_scale", -1, &global_scale, &args.global_scale) < 0) {
        return -1;
    }
    return py_finish_read(call, v, &args, t, result);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* gemm                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* a and b, or one of them, may be tuples of three, which nvfp4kern.whole.apart takes apart. */
int py_run_gemm(py_call *call, PyObject *const *v, PyObject **result)
{
    static const int places[] = {PY_GEMM_A,     PY_GEMM_B,         PY_GEMM_SFA,         PY_GEMM_SFB,
                                 PY_GEMM_ALPHA, PY_GEMM_ROW_SCALE, PY_GEMM_SCALE_LAYOUT};
    enum { COUNT = sizeof places / sizeof places[0] };
    if (!PyTuple_Check(v[PY_GEMM_A]) && !PyTuple_Check(v[PY_GEMM_B])) return py_run_one(call, v, result);
    PyObject *apart = py_imported(&call->state->apart, "nvfp4kern.whole", "apart"), *values[PY_MAX_ARGS], *given[COUNT];
    if (!apart) return -1;
    for (int i = 0; i < COUNT; i++)
        given[i] = v[places[i]] ? v[places[i]] : Py_None;
    PyObject *parts =
        PyObject_CallFunctionObjArgs(apart, given[0], given[1], given[2], given[3], given[4], given[5], given[6], NULL);
    if (!parts || py_keep(call, parts) < 0) return -1;
    memcpy(values, v, sizeof values);
    for (int i = 0; i < COUNT; i++)
        values[places[i]] = PyTuple_GetItem(parts, i);
    return py_run_one(call, values, result);
}
