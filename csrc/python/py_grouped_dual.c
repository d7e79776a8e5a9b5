/* Binds grouped_dual_gemm, whose result is a tensor of floats or an NVFP4. */
#include "py_args.h"
#include "py_nvfp4.h"
#include "py_output.h"
#include "py_read.h"
#include "py_tensor.h"

#include <py_operators.h>

PY_ADAPT(grouped_dual_gemm)

static bool is_given(PyObject *object) { return object && object != Py_None; }

/* With quantized=True: the outputs are codes and scale factors. */
static int quantized_output(py_call *call, PyObject *const *v, nk_grouped_dual_gemm_args *args, PyObject **result)
{
    nk_tensor t[2], specs[2], global_scale, inverse;
    const nk_tensor **pointers[] = {&args->codes, &args->scales};
    PyObject *given[2] = {NULL}, *outputs[2] = {NULL};
    nk_dtype data_dtype = NK_E2M1X2;
    int failed = -1;
    if (is_given(v[PY_GROUPED_DUAL_GEMM_OUT_DTYPE])) {
        return py_fail_at(PyExc_ValueError, "out_dtype", -1, "%R, expected None with quantized=True",
                          v[PY_GROUPED_DUAL_GEMM_OUT_DTYPE]);
    }
    if (py_global_scale(call, v[PY_GROUPED_DUAL_GEMM_GLOBAL_SCALE], &global_scale, &args->global_scale, NULL, NULL) <
            0 ||
        py_global_scale_inverse(call, v[PY_GROUPED_DUAL_GEMM_GLOBAL_SCALE_INVERSE], &inverse, &args->global_scale,
                                &args->inverse) < 0 ||
        py_optional_outputs(call, v[PY_GROUPED_DUAL_GEMM_OUT], "(data, scales)", 2, 2, given, t, pointers) < 0 ||
        py_codes_dtype(v[PY_GROUPED_DUAL_GEMM_DATA_DTYPE], args->codes, &data_dtype) < 0 ||
        py_check(call, nk_grouped_dual_gemm_out(args, specs)) < 0) {
        return -1;
    }
    specs[0].dtype = data_dtype;
    for (int i = 0; i < 2; i++) {
        if (py_output(call, given[i], &specs[i], &t[i], pointers[i], &outputs[i]) < 0) goto done;
    }
    if (py_execute(call, run_grouped_dual_gemm, args) < 0) goto done;
    if (!call->exec.dry_run)
        *result = py_nvfp4(call, outputs, v[PY_GROUPED_DUAL_GEMM_GLOBAL_SCALE],
                           v[PY_GROUPED_DUAL_GEMM_GLOBAL_SCALE_INVERSE], "linear");
    failed = *result || call->exec.dry_run ? 0 : -1;
done:
    for (int i = 0; i < 2; i++)
        Py_XDECREF(outputs[i]);
    return failed;
}

static int floats_output(py_call *call, PyObject *const *v, nk_grouped_dual_gemm_args *args, PyObject **result)
{
    static const struct {
        int index;
        const char *name;
    } refused[] = {{PY_GROUPED_DUAL_GEMM_GLOBAL_SCALE, "global_scale"},
                   {PY_GROUPED_DUAL_GEMM_GLOBAL_SCALE_INVERSE, "global_scale_inverse"},
                   {PY_GROUPED_DUAL_GEMM_DATA_DTYPE, "data_dtype"}};
    nk_tensor out;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (is_given(v[refused[i].index])) {
            return py_fail_at(PyExc_ValueError, refused[i].name, -1, "given, expected None unless quantized=True");
        }
    }
    if (py_optional_output(call, v[PY_GROUPED_DUAL_GEMM_OUT], &out, &args->out) < 0 ||
        py_output_dtype(v[PY_GROUPED_DUAL_GEMM_OUT_DTYPE], args->out, &args->out_dtype) < 0) {
        return -1;
    }
    return py_finish(call, v[PY_GROUPED_DUAL_GEMM_OUT], spec_grouped_dual_gemm, run_grouped_dual_gemm, args, &out,
                     &args->out, result);
}

int py_run_grouped_dual_gemm(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_grouped_dual_gemm_args args;
    nk_tensor t[PY_MAX_TENSORS];
    if (py_read(call, v, &args, t) < 0) return -1;
    return args.quantized ? quantized_output(call, v, &args, result) : floats_output(call, v, &args, result);
}
