/* Binds gemv, gemm and dual_gemm, which have one output each. */
#include "py_args.h"
#include "py_operators.h"
#include "py_output.h"
#include "py_tensor.h"

PY_ADAPT(gemv)
PY_ADAPT(gemm)
PY_ADAPT(dual_gemm)

static int gemv(py_call *call, PyObject *const *v, PyObject **result)
{
    enum { A, B, SFA, SFB, ALPHA, SCALE_LAYOUT, OUT, OUT_DTYPE };
    nk_tensor a, b, sfa, sfb, alpha, out;
    nk_gemm_args args = {.alpha.value = 1, .out_dtype = NK_F16};
    if (py_argument(call, v[A], "a", &a, &args.a) < 0 || py_argument(call, v[B], "b", &b, &args.b) < 0 ||
        py_optional(call, v[SFA], "sfa", &sfa, &args.sfa) < 0 ||
        py_optional(call, v[SFB], "sfb", &sfb, &args.sfb) < 0 ||
        py_scalar(call, v[ALPHA], "alpha", -1, &alpha, &args.alpha) < 0 ||
        py_scale_layouts(v[SCALE_LAYOUT], &args.sfa_layout, &args.sfb_layout) < 0 ||
        py_optional_output(call, v[OUT], &out, &args.out) < 0 ||
        py_output_dtype(v[OUT_DTYPE], args.out, &args.out_dtype) < 0) {
        return -1;
    }
    return py_finish(call, v[OUT], spec_gemv, run_gemv, &args, &out, &args.out, result);
}

const py_operator py_gemv = {
    .name = "gemv",
    .required = 3,
    .positional = 4,
    .names = {"a", "b", "sfa", "sfb", "alpha", "scale_layout", "out", "out_dtype"},
    .run = gemv,
};

static int gemm(py_call *call, PyObject *const *v, PyObject **result)
{
    enum { A, B, SFA, SFB, ALPHA, BIAS, SCALE_LAYOUT, OUT, OUT_DTYPE };
    nk_tensor a, b, sfa, sfb, alpha, bias, out;
    nk_gemm_args args = {.alpha.value = 1, .out_dtype = NK_F16};
    if (py_argument(call, v[A], "a", &a, &args.a) < 0 || py_argument(call, v[B], "b", &b, &args.b) < 0 ||
        py_optional(call, v[SFA], "sfa", &sfa, &args.sfa) < 0 ||
        py_optional(call, v[SFB], "sfb", &sfb, &args.sfb) < 0 ||
        py_scalar(call, v[ALPHA], "alpha", -1, &alpha, &args.alpha) < 0 ||
        py_optional(call, v[BIAS], "bias", &bias, &args.bias) < 0 ||
        py_scale_layouts(v[SCALE_LAYOUT], &args.sfa_layout, &args.sfb_layout) < 0 ||
        py_optional_output(call, v[OUT], &out, &args.out) < 0 ||
        py_output_dtype(v[OUT_DTYPE], args.out, &args.out_dtype) < 0) {
        return -1;
    }
    return py_finish(call, v[OUT], spec_gemm, run_gemm, &args, &out, &args.out, result);
}

const py_operator py_gemm = {
    .name = "gemm",
    .required = 4,
    .positional = 4,
    .names = {"a", "b", "sfa", "sfb", "alpha", "bias", "scale_layout", "out", "out_dtype"},
    .run = gemm,
};

static int dual_gemm(py_call *call, PyObject *const *v, PyObject **result)
{
    enum { A, B1, B2, SFA, SFB1, SFB2, ALPHA1, ALPHA2, ACTIVATION, SCALE_LAYOUT, OUT, OUT_DTYPE };
    nk_tensor a, b1, b2, sfa, sfb1, sfb2, alpha1, alpha2, out;
    nk_dual_gemm_args args = {.alpha1.value = 1, .alpha2.value = 1, .out_dtype = NK_F16};
    if (py_argument(call, v[A], "a", &a, &args.a) < 0 || py_argument(call, v[B1], "b1", &b1, &args.b1) < 0 ||
        py_argument(call, v[B2], "b2", &b2, &args.b2) < 0 || py_optional(call, v[SFA], "sfa", &sfa, &args.sfa) < 0 ||
        py_optional(call, v[SFB1], "sfb1", &sfb1, &args.sfb1) < 0 ||
        py_optional(call, v[SFB2], "sfb2", &sfb2, &args.sfb2) < 0 ||
        py_scalar(call, v[ALPHA1], "alpha1", -1, &alpha1, &args.alpha1) < 0 ||
        py_scalar(call, v[ALPHA2], "alpha2", -1, &alpha2, &args.alpha2) < 0 ||
        py_activation(v[ACTIVATION], &args.activation) < 0 ||
        py_scale_layouts(v[SCALE_LAYOUT], &args.sfa_layout, &args.sfb_layout) < 0 ||
        py_optional_output(call, v[OUT], &out, &args.out) < 0 ||
        py_output_dtype(v[OUT_DTYPE], args.out, &args.out_dtype) < 0) {
        return -1;
    }
    return py_finish(call, v[OUT], spec_dual_gemm, run_dual_gemm, &args, &out, &args.out, result);
}

const py_operator py_dual_gemm = {
    .name = "dual_gemm",
    .required = 6,
    .positional = 6,
    .names = {"a", "b1", "b2", "sfa", "sfb1", "sfb2", "alpha1", "alpha2", "activation", "scale_layout", "out",
              "out_dtype"},
    .run = dual_gemm,
};
