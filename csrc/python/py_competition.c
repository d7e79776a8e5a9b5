/* Binds custom_kernel(data) of the GPU MODE NVFP4 problems: reads their tuples and calls our operators.
 *
 * Their tensors are [rows, K/2, L] with L outermost in memory; ours are [L, rows, K/2]. Their scale factors come in
 * both layouts. Only the permuted ones are read: views of the blocked layout, which our operators take as they are. */
#include "py_args.h"
#include "py_describe.h"
#include "py_grouped.h"
#include "py_tensor.h"

#include <py_operators.h>

static nk_status run_gemv(const void *args, nk_exec *exec) { return nk_gemv(args, exec); }
static nk_status run_gemm(const void *args, nk_exec *exec) { return nk_gemm(args, exec); }
static nk_status run_dual_gemm(const void *args, nk_exec *exec) { return nk_dual_gemm(args, exec); }

static void rotate(int64_t x[3])
{
    int64_t last = x[2];
    x[2] = x[1];
    x[1] = x[0];
    x[0] = last;
}

static int matrices(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t,
                    const nk_tensor **pointer)
{
    if (py_tensor(call, object, name, index, t) < 0) return -1;
    if (t->ndim != 3) {
        return py_fail_at(PyExc_ValueError, name, index, "%d dimensions, expected 3: [rows, columns, L]", (int)t->ndim);
    }
    *pointer = t;
    return 0;
}

/* [rows, cols, L] -> [L, rows, cols]. */
static int rotated(py_call *call, PyObject *object, const char *name, nk_tensor *t, const nk_tensor **pointer)
{
    if (matrices(call, object, name, -1, t, pointer) < 0) return -1;
    rotate(t->shape);
    rotate(t->stride);
    if (t->shape[0] != 1) py_tidy_strides(t); /* extents of 1 had strides of the other order; with L = 1 both agree */
    return 0;
}

static int permuted(py_call *call, PyObject *object, const char *name, int32_t index, nk_tensor *t,
                    const nk_tensor **pointer)
{
    if (py_tensor(call, object, name, index, t) < 0) return -1;
    if (t->ndim != 6) {
        return py_fail_at(PyExc_ValueError, name, index,
                          "%d dimensions, expected 6: [32, 4, rest_m, 4, rest_k, L]", (int)t->ndim);
    }
    *pointer = t;
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* gemv, gemm, dual_gemm                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

#define SINGLE_TUPLE "(a, b, sfa, sfb, sfa_permuted, sfb_permuted, c)"

static int single(py_call *call, PyObject *data, nk_gemm_args *args, nk_tensor t[5], PyObject **c)
{
    PyObject *items = py_items(call, data, "data", 7, SINGLE_TUPLE);
    if (!items) return -1;
    *c = PyTuple_GetItem(items, 6);
    args->alpha.value = 1;
    args->sfa_layout = args->sfb_layout = NK_SF_BLOCKED;
    if (rotated(call, PyTuple_GetItem(items, 0), "a", &t[0], &args->a) < 0 ||
        rotated(call, PyTuple_GetItem(items, 1), "b", &t[1], &args->b) < 0 ||
        permuted(call, PyTuple_GetItem(items, 4), "sfa_permuted", -1, &t[2], &args->sfa) < 0 ||
        permuted(call, PyTuple_GetItem(items, 5), "sfb_permuted", -1, &t[3], &args->sfb) < 0 ||
        rotated(call, *c, "c", &t[4], &args->out) < 0 || py_note_output(call, *c) < 0) {
        return -1;
    }
    return 0;
}

static int gemv(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_gemm_args args = {0};
    nk_tensor t[5], *b = &t[1];
    PyObject *c;
    if (single(call, v[0], &args, t, &c) < 0) return -1;
    if (b->shape[1] < 1) return py_fail_at(PyExc_ValueError, "b", -1, "no rows, expected the vector in row 0");
    b->shape[1] = 1; /* the harness pads the vector to 128 rows */
    if (py_execute(call, run_gemv, &args) < 0) return -1;
    *result = Py_NewRef(c);
    return 0;
}

static int gemm(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_gemm_args args = {0};
    nk_tensor t[5];
    PyObject *c;
    if (single(call, v[0], &args, t, &c) < 0 || py_execute(call, run_gemm, &args) < 0) return -1;
    *result = Py_NewRef(c);
    return 0;
}

static int dual_gemm(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_dual_gemm_args args = *(const nk_dual_gemm_args *)py_dual_gemm.defaults;
    args.sfa_layout = args.sfb_layout = NK_SF_BLOCKED;
    nk_tensor a, b1, b2, sfa, sfb1, sfb2, c;
    PyObject *data = py_items(call, v[0], "data", 10,
                              "a tuple (a, b1, b2, sfa, sfb1, sfb2, sfa_permuted, sfb1_permuted, sfb2_permuted, c)");
    if (!data || rotated(call, PyTuple_GetItem(data, 0), "a", &a, &args.a) < 0 ||
        rotated(call, PyTuple_GetItem(data, 1), "b1", &b1, &args.b1) < 0 ||
        rotated(call, PyTuple_GetItem(data, 2), "b2", &b2, &args.b2) < 0 ||
        permuted(call, PyTuple_GetItem(data, 6), "sfa_permuted", -1, &sfa, &args.sfa) < 0 ||
        permuted(call, PyTuple_GetItem(data, 7), "sfb1_permuted", -1, &sfb1, &args.sfb1) < 0 ||
        permuted(call, PyTuple_GetItem(data, 8), "sfb2_permuted", -1, &sfb2, &args.sfb2) < 0 ||
        rotated(call, PyTuple_GetItem(data, 9), "c", &c, &args.out) < 0 ||
        py_note_output(call, PyTuple_GetItem(data, 9)) < 0 ||
        py_execute(call, run_dual_gemm, &args) < 0) {
        return -1;
    }
    *result = Py_NewRef(PyTuple_GetItem(data, 9));
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* group_gemm                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Drops the last dimension, L = 1: a group is one matrix. */
static int one_matrix(nk_tensor *t)
{
    int64_t l = t->shape[--t->ndim];
    return l == 1 ? 0 : py_fail_at(PyExc_ValueError, t->name, t->index, "L = %lld, expected 1", (long long)l);
}

/* Raises unless `t` is [rows, cols], as problem_sizes says. */
static int agrees(const nk_tensor *t, int64_t rows, int64_t cols)
{
    if (t->shape[0] == rows && t->shape[1] == cols) return 0;
    return py_fail_at(PyExc_ValueError, t->name, t->index,
                      "shape (%lld, %lld, 1), but problem_sizes[%d] asks for (%lld, %lld, 1)", (long long)t->shape[0],
                      (long long)t->shape[1], (int)t->index, (long long)rows, (long long)cols);
}

/* Item g of a list of tuples, as py_items returns it. */
static PyObject *inner(py_call *call, PyObject *items, Py_ssize_t g, const char *name, Py_ssize_t count,
                       const char *expected)
{
    PyObject *item = PyTuple_GetItem(items, g);
    if (PyTuple_CheckExact(item) && PyTuple_Size(item) == count) return item;
    char indexed[64];
    PyOS_snprintf(indexed, sizeof indexed, "%s[%zd]", name, g);
    return py_items(call, item, indexed, count, expected);
}

static int group(py_call *call, PyObject *abc, PyObject *sf, PyObject *sizes, int32_t g, py_group *t, nk_gemm_args *p)
{
    enum { M, N, K, L };
    int64_t size[4];
    for (int i = 0; i < 4; i++) {
        if (py_int(PyTuple_GetItem(sizes, i), "problem_sizes", &size[i]) < 0) return -1;
    }
    p->sfa_layout = p->sfb_layout = NK_SF_BLOCKED;
    if (matrices(call, PyTuple_GetItem(abc, 0), "a", g, &t->a, &p->a) < 0 ||
        matrices(call, PyTuple_GetItem(abc, 1), "b", g, &t->b, &p->b) < 0 ||
        permuted(call, PyTuple_GetItem(sf, 0), "sfa_permuted", g, &t->sfa, &p->sfa) < 0 ||
        permuted(call, PyTuple_GetItem(sf, 1), "sfb_permuted", g, &t->sfb, &p->sfb) < 0 ||
        matrices(call, PyTuple_GetItem(abc, 2), "c", g, &t->out, &p->out) < 0 ||
        py_note_output(call, PyTuple_GetItem(abc, 2)) < 0) {
        return -1;
    }
    if (size[L] != 1) {
        return py_fail_at(PyExc_ValueError, "problem_sizes", g, "l = %lld, expected 1", (long long)size[L]);
    }
    if (one_matrix(&t->a) < 0 || one_matrix(&t->b) < 0 || one_matrix(&t->sfa) < 0 || one_matrix(&t->sfb) < 0 ||
        one_matrix(&t->out) < 0) {
        return -1;
    }
    if (size[K] % 2) {
        return py_fail_at(PyExc_ValueError, "problem_sizes", g, "k = %lld, expected an even number",
                          (long long)size[K]);
    }
    if (agrees(&t->a, size[M], size[K] / 2) < 0 || agrees(&t->b, size[N], size[K] / 2) < 0) return -1;
    return agrees(&t->out, size[M], size[N]);
}

static int group_gemm(py_call *call, PyObject *const *v, PyObject **result)
{
    static const char *const per_group = "a list with one item for each of abc_tensors";
    py_groups groups = {0};
    PyObject *data, *abcs, *sfs, *sizes;
    int failed = -1;
    if (!(data = py_items(call, v[0], "data", 4,
                          "a tuple (abc_tensors, sfasfb_tensors, sfasfb_reordered_tensors, problem_sizes)")) ||
        !(abcs = py_items(call, PyTuple_GetItem(data, 0), "abc_tensors", -1, "a list"))) {
        return -1;
    }
    Py_ssize_t count = PyTuple_Size(abcs);
    if (!(sfs = py_items(call, PyTuple_GetItem(data, 2), "sfasfb_reordered_tensors", count, per_group)) ||
        !(sizes = py_items(call, PyTuple_GetItem(data, 3), "problem_sizes", count, per_group)) ||
        py_groups_init(&groups, count) < 0 || !(*result = PyList_New(count))) {
        goto done;
    }
    for (Py_ssize_t g = 0; g < count; g++) {
        PyObject *abc = inner(call, abcs, g, "abc_tensors", 3, "a tuple (a, b, c)");
        PyObject *sf = abc ? inner(call, sfs, g, "sfasfb_reordered_tensors", 2, "a tuple (sfa, sfb)") : NULL;
        PyObject *size = sf ? inner(call, sizes, g, "problem_sizes", 4, "a tuple (m, n, k, l)") : NULL;
        if (!size || group(call, abc, sf, size, (int32_t)g, &groups.tensors[g], &groups.list[g]) < 0) goto done;
        if (PyList_SetItem(*result, g, Py_NewRef(PyTuple_GetItem(abc, 2))) < 0) goto done;
    }
    failed = py_groups_run(call, &groups);
done:
    py_groups_free(&groups);
    return failed;
}

/* Their functions are called as custom_kernel(data). */
static const py_parameter data_parameters[] = {{.name = "data"}, {0}};
#define DROP_IN(operator)                                                                                              \
    const py_operator py_competition_##operator = {                                                                    \
        .name = "custom_kernel", .required = 1, .positional = 1, .parameters = data_parameters, .run = operator}

DROP_IN(gemv);
DROP_IN(gemm);
DROP_IN(dual_gemm);
DROP_IN(group_gemm);
