/* Binds quantize, dequantize, to_blocked and from_blocked. */
#include "py_args.h"
#include "py_nvfp4.h"
#include "py_operators.h"
#include "py_output.h"
#include "py_tensor.h"

PY_ADAPT(dequantize)
PY_ADAPT(relayout)

static nk_status run_quantize(const void *args, nk_exec *exec) { return nk_quantize(args, exec); }

/* ---------------------------------------------------------------------------------------------------------------- */
/* quantize                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

static int quantize(py_call *call, PyObject *const *v, PyObject **result)
{
    enum { X, UP, GLOBAL_SCALE, SCALE_LAYOUT, OFFSETS, OUT, DATA_DTYPE };
    nk_tensor x, up, global_scale, offsets, t[NK_QUANTIZE_OUTPUTS], specs[NK_QUANTIZE_OUTPUTS];
    nk_quantize_args args = {.global_scale.value = 1};
    const nk_tensor **pointers[] = {&args.codes, &args.scales, &args.amax_out};
    PyObject *given[NK_QUANTIZE_OUTPUTS] = {NULL}, *outputs[NK_QUANTIZE_OUTPUTS] = {NULL};
    nk_dtype data_dtype = NK_E2M1X2;
    int count, failed = -1;
    if (py_argument(call, v[X], "x", &x, &args.x) < 0 ||
        py_optional(call, v[UP], "up", &up, &args.up) < 0 ||
        py_global_scale(call, v[GLOBAL_SCALE], &global_scale, &args.global_scale, &args.amax) < 0 ||
        py_scale_layout(v[SCALE_LAYOUT], &args.layout) < 0 ||
        py_optional(call, v[OFFSETS], "offsets", &offsets, &args.offsets) < 0 ||
        py_optional_outputs(call, v[OUT],
                            args.amax ? "(data, scales) or (data, scales, global_scale)" : "(data, scales)", 2,
                            args.amax ? 3 : 2, given, t, pointers) < 0 ||
        py_codes_dtype(v[DATA_DTYPE], args.codes, &data_dtype) < 0 ||
        py_check(call, nk_quantize_out(&args, specs, &count)) < 0) {
        return -1;
    }
    specs[0].dtype = data_dtype;
    for (int i = 0; i < count; i++) {
        if (py_output(call, given[i], &specs[i], &t[i], pointers[i], &outputs[i]) < 0) goto done;
    }
    if (py_execute(call, run_quantize, &args) < 0) goto done;
    if (!call->exec.dry_run) *result = py_nvfp4(call, outputs, outputs[2] ? outputs[2] : v[GLOBAL_SCALE]);
    failed = *result || call->exec.dry_run ? 0 : -1;
done:
    for (int i = 0; i < NK_QUANTIZE_OUTPUTS; i++) Py_XDECREF(outputs[i]);
    return failed;
}

const py_operator py_quantize = {
    .name = "quantize",
    .required = 1,
    .positional = 1,
    .names = {"x", "up", "global_scale", "scale_layout", "offsets", "out", "data_dtype"},
    .run = quantize,
};

/* ---------------------------------------------------------------------------------------------------------------- */
/* dequantize                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

static int dequantize(py_call *call, PyObject *const *v, PyObject **result)
{
    enum { Q, SCALE_LAYOUT, OUT, OUT_DTYPE };
    nk_tensor codes, scales, global_scale, out;
    nk_dequantize_args args = {.global_scale.value = 1, .out_dtype = NK_F16};
    PyObject *q = py_items(call, v[Q], "q", 3, "NVFP4(data, scales, global_scale)");
    if (!q) return -1;
    PyObject *scale = PyTuple_GetItem(q, 2);
    if (scale == Py_None) scale = NULL; /* means 1, as for quantize */
    if (py_argument(call, PyTuple_GetItem(q, 0), "q.data", &codes, &args.codes) < 0 ||
        py_optional(call, PyTuple_GetItem(q, 1), "q.scales", &scales, &args.scales) < 0 ||
        py_scalar(call, scale, "q.global_scale", -1, &global_scale, &args.global_scale) < 0 ||
        py_scale_layout(v[SCALE_LAYOUT], &args.layout) < 0 ||
        py_optional_output(call, v[OUT], &out, &args.out) < 0 ||
        py_output_dtype(v[OUT_DTYPE], args.out, &args.out_dtype) < 0) {
        return -1;
    }
    return py_finish(call, v[OUT], spec_dequantize, run_dequantize, &args, &out, &args.out, result);
}

const py_operator py_dequantize = {
    .name = "dequantize",
    .required = 1,
    .positional = 1,
    .names = {"q", "scale_layout", "out", "out_dtype"},
    .run = dequantize,
};

/* ---------------------------------------------------------------------------------------------------------------- */
/* Scale layouts                                                                                                    */
/* ---------------------------------------------------------------------------------------------------------------- */

static int to_blocked(py_call *call, PyObject *const *v, PyObject **result)
{
    enum { SCALES, OUT };
    nk_tensor in, out;
    nk_relayout_args args = {.to = NK_SF_BLOCKED};
    if (py_argument(call, v[SCALES], "scales", &in, &args.in) < 0 ||
        py_optional_output(call, v[OUT], &out, &args.out) < 0) {
        return -1;
    }
    return py_finish(call, v[OUT], spec_relayout, run_relayout, &args, &out, &args.out, result);
}

const py_operator py_to_blocked = {
    .name = "to_blocked",
    .required = 1,
    .positional = 1,
    .names = {"scales", "out"},
    .run = to_blocked,
};

static int from_blocked(py_call *call, PyObject *const *v, PyObject **result)
{
    enum { BUFFER, ROWS, COLS, OUT };
    nk_tensor in, out;
    nk_relayout_args args = {.to = NK_SF_LINEAR};
    if (py_argument(call, v[BUFFER], "buffer", &in, &args.in) < 0 || py_int(v[ROWS], "rows", &args.rows) < 0 ||
        py_int(v[COLS], "cols", &args.cols) < 0 || py_optional_output(call, v[OUT], &out, &args.out) < 0) {
        return -1;
    }
    return py_finish(call, v[OUT], spec_relayout, run_relayout, &args, &out, &args.out, result);
}

const py_operator py_from_blocked = {
    .name = "from_blocked",
    .required = 3,
    .positional = 3,
    .names = {"buffer", "rows", "cols", "out"},
    .run = from_blocked,
};
