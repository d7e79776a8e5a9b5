/* Ends calls of experts' products, whose result is a tensor of floats or, with quantized=True, an NVFP4. */
#include "py_experts.h"

#include "py_nvfp4.h"
#include "py_output.h"
#include "py_tensor.h"

static bool is_given(PyObject *object) { return object && object != Py_None; }

/* The outputs are codes and scale factors. */
static int quantized_output(py_call *call, PyObject *const *v, const py_experts *e, PyObject **result)
{
    nk_encoding_args *to = e->encoding;
    nk_tensor t[2], specs[2], global_scale, inverse;
    const nk_tensor **pointers[] = {&to->codes, &to->scales};
    PyObject *given[2] = {NULL}, *outputs[2] = {NULL};
    PyObject *scale = v[PY_EXPERTS_GLOBAL_SCALE], *inverse_scale = v[PY_EXPERTS_GLOBAL_SCALE_INVERSE];
    nk_dtype data_dtype = NK_E2M1X2;
    int failed = -1;
    if (is_given(v[PY_EXPERTS_OUT_DTYPE])) {
        return py_fail_at(PyExc_ValueError, "out_dtype", -1, "%R, expected None with quantized=True",
                          v[PY_EXPERTS_OUT_DTYPE]);
    }
    if (py_global_scale(call, scale, &global_scale, &to->global_scale, NULL, NULL) < 0 ||
        py_global_scale_inverse(call, inverse_scale, &inverse, &to->global_scale, &to->inverse) < 0 ||
        py_optional_outputs(call, v[PY_EXPERTS_OUT], "(data, scales)", 2, 2, given, t, pointers) < 0 ||
        py_codes_dtype(v[PY_EXPERTS_DATA_DTYPE], to->codes, &data_dtype) < 0 ||
        py_check(call, e->spec(e->args, specs)) < 0) {
        return -1;
    }
    specs[0].dtype = data_dtype;
    for (int i = 0; i < 2; i++) {
        if (py_output(call, given[i], &specs[i], &t[i], pointers[i], &outputs[i]) < 0) goto done;
    }
    if (py_execute(call, e->op, e->args) < 0) goto done;
    if (!call->exec.dry_run) *result = py_nvfp4(call, outputs, scale, inverse_scale, "linear");
    failed = *result || call->exec.dry_run ? 0 : -1;
done:
    for (int i = 0; i < 2; i++)
        Py_XDECREF(outputs[i]);
    return failed;
}

int py_refuse_encoding(PyObject *const *v)
{
    static const struct {
        int index;
        const char *name;
    } refused[] = {{PY_EXPERTS_GLOBAL_SCALE, "global_scale"},
                   {PY_EXPERTS_GLOBAL_SCALE_INVERSE, "global_scale_inverse"},
                   {PY_EXPERTS_DATA_DTYPE, "data_dtype"}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (is_given(v[refused[i].index])) {
            return py_fail_at(PyExc_ValueError, refused[i].name, -1, "given, expected None unless quantized=True");
        }
    }
    return 0;
}

static int floats_output(py_call *call, PyObject *const *v, const py_experts *e, PyObject **result)
{
    nk_tensor out;
    if (py_refuse_encoding(v) < 0 || py_optional_output(call, v[PY_EXPERTS_OUT], &out, e->out) < 0 ||
        py_output_dtype(v[PY_EXPERTS_OUT_DTYPE], *e->out, e->out_dtype) < 0) {
        return -1;
    }
    return py_finish(call, v[PY_EXPERTS_OUT], e->spec, e->op, e->args, &out, e->out, result);
}

int py_finish_experts(py_call *call, PyObject *const *v, const py_experts *e, PyObject **result)
{
    return e->encoding->wanted ? quantized_output(call, v, e, result) : floats_output(call, v, e, result);
}
