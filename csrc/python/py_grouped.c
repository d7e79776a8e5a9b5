/* Binds grouped_gemm in its list form and in its contiguous form. */
#include "py_grouped.h"

#include "py_args.h"
#include "py_experts.h"
#include "py_output.h"
#include "py_read.h"
#include "py_tensor.h"

#include <py_operators.h>

PY_ADAPT(grouped_gemm)
PY_EXPERTS_ARE_LAST(GROUPED_GEMM);

/* ---------------------------------------------------------------------------------------------------------------- */
/* Groups                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* One allocation for all three. Only the list is set: it says which tensors there are; the call writes the problems. */
int py_groups_init(py_groups *groups, Py_ssize_t count)
{
    size_t n = (size_t)count; /* as many items exist in memory, so the sizes below do not overflow */
    groups->count = count;
    groups->tensors = PyMem_Malloc(n * (sizeof *groups->tensors + sizeof *groups->list + nk_gemm_problem_size()));
    if (!groups->tensors) {
        PyErr_NoMemory();
        return -1;
    }
    groups->list = (nk_gemm_args *)(groups->tensors + n);
    groups->problems = groups->list + n;
    groups->activation = NK_IDENTITY;
    groups->quantized = false;
    for (Py_ssize_t g = 0; g < count; g++)
        groups->list[g] = (nk_gemm_args){.alpha.value = 1};
    return 0;
}

static nk_grouped_gemm_args list_args(const py_groups *groups)
{
    return (nk_grouped_gemm_args){.groups = groups->count,
                                  .list = groups->list,
                                  .problems = groups->problems,
                                  .activation = groups->activation,
                                  .encoding.wanted = groups->quantized};
}

int py_groups_run(py_call *call, const py_groups *groups)
{
    nk_grouped_gemm_args args = list_args(groups);
    return py_execute(call, run_grouped_gemm, &args);
}

void py_groups_free(py_groups *groups) { PyMem_Free(groups->tensors); }

/* ---------------------------------------------------------------------------------------------------------------- */
/* List form                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

static const char *const one_per_group = "a list with one item for each of a";

/* *items stays NULL where there is no such list. */
static int optional_items(py_call *call, PyObject *object, const char *name, Py_ssize_t count, PyObject **items)
{
    if (!object || object == Py_None) return 0;
    *items = py_items(call, object, name, count, one_per_group);
    return *items ? 0 : -1;
}

static int tensor_of(py_call *call, PyObject *items, const char *name, Py_ssize_t g, nk_tensor *t,
                     const nk_tensor **pointer)
{
    if (py_tensor(call, PyTuple_GetItem(items, g), name, (int32_t)g, t) < 0) return -1;
    *pointer = t;
    return 0;
}

static int optional_tensor_of(py_call *call, PyObject *items, const char *name, Py_ssize_t g, nk_tensor *t,
                              const nk_tensor **pointer)
{
    return items && PyTuple_GetItem(items, g) != Py_None ? tensor_of(call, items, name, g, t, pointer) : 0;
}

/* alpha: a number for all groups, or a list. A bare tensor could mean [G] or [N] and is refused. */
static int alpha_items(py_call *call, PyObject *object, Py_ssize_t count, PyObject **items, float *value)
{
    if (!object || object == Py_None) return 0;
    if (PyFloat_Check(object) || PyLong_Check(object)) return py_float(object, "alpha", -1, value);
    *items = py_items(call, object, "alpha", count, "a number or a list with one item for each of a");
    return *items ? 0 : -1;
}

/* *result becomes the caller's list itself, or a new list of new outputs. */
static int list_outputs(py_call *call, PyObject *out, py_groups *groups, PyObject **result)
{
    if (out && out != Py_None) {
        *result = Py_NewRef(out);
        return 0;
    }
    if (call->exec.dry_run) return 0;
    nk_grouped_gemm_args args = list_args(groups);
    nk_tensor *specs = PyMem_Calloc((size_t)groups->count, sizeof *specs);
    int failed = -1;
    *result = PyList_New(groups->count);
    if (!specs) PyErr_NoMemory();
    if (!specs || !*result || py_check(call, spec_grouped_gemm(&args, specs)) < 0) goto done;
    for (Py_ssize_t g = 0; g < groups->count; g++) {
        PyObject *output = NULL;
        if (py_output(call, NULL, &specs[g], &groups->tensors[g].out, &groups->list[g].out, &output) < 0) goto done;
        if (PyList_SetItem(*result, g, output) < 0) goto done;
    }
    failed = 0;
done:
    PyMem_Free(specs);
    return failed;
}

static int refused_by_list(PyObject *object, const char *name)
{
    if (!object || object == Py_None) return 0;
    return py_fail_at(PyExc_ValueError, name, -1, "given, expected None where a is a list");
}

static int read_options(py_call *call, PyObject *const *v, py_groups *groups)
{
    const py_parameter *p = &call->op->parameters[PY_GROUPED_GEMM_ACTIVATION];
    int kind = (int)groups->activation;
    if (py_word(v[PY_GROUPED_GEMM_ACTIVATION], p->name, p->words, &kind) < 0) return -1;
    groups->activation = (nk_activation_kind)kind;
    return py_bool(v[PY_GROUPED_GEMM_QUANTIZED], "quantized", &groups->quantized);
}

static int list_form(py_call *call, PyObject *const *v, PyObject **result)
{
    py_groups groups = {0};
    int64_t per_token = 1;
    PyObject *as, *bs, *sfas = NULL, *sfbs = NULL, *alphas = NULL, *row_scales = NULL, *biases = NULL, *outs = NULL;
    nk_gemm_args common = {.alpha.value = 1, .out_dtype = NK_OTHER};
    bool quantized = false; /* which nk_grouped_gemm refuses */
    int failed = -1;
    if (refused_by_list(v[PY_GROUPED_GEMM_OFFSETS], "offsets") < 0 ||
        refused_by_list(v[PY_GROUPED_GEMM_ROWS], "rows") < 0 ||
        refused_by_list(v[PY_GROUPED_GEMM_EXPECTED_ROWS], "expected_rows") < 0 ||
        py_bool(v[PY_GROUPED_GEMM_QUANTIZED], "quantized", &quantized) < 0 ||
        (!quantized && py_refuse_encoding(v + PY_GROUPED_GEMM_OUT) < 0) ||
        py_int(v[PY_GROUPED_GEMM_ROWS_PER_TOKEN], "rows_per_token", &per_token) < 0) {
        return -1;
    }
    if (per_token != 1) {
        return py_fail_at(PyExc_ValueError, "rows_per_token", -1, "%lld, expected 1 where a is a list",
                          (long long)per_token);
    }
    if (!(as = py_items(call, v[PY_GROUPED_GEMM_A], "a", -1, "a list"))) return -1;
    Py_ssize_t count = PyTuple_Size(as);
    if (!(bs = py_items(call, v[PY_GROUPED_GEMM_B], "b", count, one_per_group)) ||
        optional_items(call, v[PY_GROUPED_GEMM_SFA], "sfa", count, &sfas) < 0 ||
        optional_items(call, v[PY_GROUPED_GEMM_SFB], "sfb", count, &sfbs) < 0 ||
        alpha_items(call, v[PY_GROUPED_GEMM_ALPHA], count, &alphas, &common.alpha.value) < 0 ||
        optional_items(call, v[PY_GROUPED_GEMM_ROW_SCALE], "row_scale", count, &row_scales) < 0 ||
        optional_items(call, v[PY_GROUPED_GEMM_BIAS], "bias", count, &biases) < 0 ||
        py_scale_layouts(v[PY_GROUPED_GEMM_SCALE_LAYOUT], &common.sfa_layout, &common.sfb_layout) < 0 ||
        optional_items(call, v[PY_GROUPED_GEMM_OUT], "out", count, &outs) < 0 ||
        py_output_dtype(v[PY_GROUPED_GEMM_OUT_DTYPE], NULL, &common.out_dtype) < 0 ||
        py_groups_init(&groups, count) < 0 || read_options(call, v, &groups) < 0) {
        goto done;
    }
    for (Py_ssize_t g = 0; g < count; g++) {
        py_group *t = &groups.tensors[g];
        nk_gemm_args *p = &groups.list[g];
        PyObject *alpha = alphas ? PyTuple_GetItem(alphas, g) : NULL;
        *p = common;
        if (tensor_of(call, as, "a", g, &t->a, &p->a) < 0 || tensor_of(call, bs, "b", g, &t->b, &p->b) < 0 ||
            optional_tensor_of(call, sfas, "sfa", g, &t->sfa, &p->sfa) < 0 ||
            optional_tensor_of(call, sfbs, "sfb", g, &t->sfb, &p->sfb) < 0 ||
            py_scalar(call, alpha, "alpha", (int32_t)g, &t->alpha, &p->alpha) < 0 ||
            optional_tensor_of(call, row_scales, "row_scale", g, &t->row_scale, &p->row_scale) < 0 ||
            optional_tensor_of(call, biases, "bias", g, &t->bias, &p->bias) < 0) {
            goto done;
        }
    }
    for (Py_ssize_t g = 0; outs && g < count; g++) {
        py_group *t = &groups.tensors[g];
        nk_gemm_args *p = &groups.list[g];
        if (py_given_output(call, PyTuple_GetItem(outs, g), "out", (int32_t)g, &t->out, &p->out) < 0 ||
            py_output_dtype(v[PY_GROUPED_GEMM_OUT_DTYPE], p->out, &p->out_dtype) < 0) {
            goto done;
        }
    }
    if (list_outputs(call, v[PY_GROUPED_GEMM_OUT], &groups, result) < 0) goto done;
    failed = py_groups_run(call, &groups);
done:
    py_groups_free(&groups);
    return failed;
}

int py_run_grouped_gemm(py_call *call, PyObject *const *v, PyObject **result)
{
    PyObject *a = v[PY_GROUPED_GEMM_A], *offsets = v[PY_GROUPED_GEMM_OFFSETS];
    if (PyList_Check(a) || PyTuple_Check(a)) return list_form(call, v, result);
    if (!offsets || offsets == Py_None) {
        return py_fail_at(PyExc_TypeError, "offsets", -1, "None, expected int32 [G + 1], since a is no list");
    }
    nk_grouped_gemm_args args;
    nk_tensor t[PY_MAX_TENSORS];
    const py_experts experts = {spec_grouped_gemm, run_grouped_gemm,    &args,
                                &args.all.out,     &args.all.out_dtype, &args.encoding};
    if (py_read(call, v, &args, t) < 0) return -1;
    return py_finish_experts(call, v + PY_GROUPED_GEMM_OUT, &experts, result);
}
