/* Binds route, which has two outputs, or five with the permutation. */
#include "py_args.h"
#include "py_operators.h"
#include "py_output.h"
#include "py_tensor.h"

static nk_status run_route(const void *args, nk_exec *exec) { return nk_route(args, exec); }

/* renormalize=None: False where the score is a softmax over all experts, else True. */
static int renormalize_argument(PyObject *object, nk_route_args *args)
{
    bool is_none;
    if (py_bool_or_none(object, "renormalize", &args->renormalize, &is_none) < 0) return -1;
    if (is_none) args->renormalize = args->score != NK_SOFTMAX_TOPK;
    if (args->renormalize || args->score != NK_TOPK_SOFTMAX) return 0;
    return py_fail_at(PyExc_ValueError, "renormalize", -1,
                      "False, expected None or True: with score='topk_softmax' the weights always sum to 1");
}

static int route(py_call *call, PyObject *const *v, PyObject **result)
{
    enum { X, W, K, SCORE, CORRECTION_BIAS, N_GROUP, TOPK_GROUP, RENORMALIZE, SCALING_FACTOR, ALPHA, DENSE, PERMUTATION,
           OUT, OUT_DTYPE };
    static const char *const scores[] = {
        [NK_TOPK_SOFTMAX] = "topk_softmax", [NK_SOFTMAX_TOPK] = "softmax_topk", [NK_SIGMOID] = "sigmoid", NULL,
    };
    nk_tensor x, w, correction_bias, alpha, t[NK_ROUTE_OUTPUTS], specs[NK_ROUTE_OUTPUTS];
    nk_route_args args = {
        .n_group = 1, .topk_group = 1, .scaling_factor = 1, .alpha.value = 1, .out_dtype = NK_F32};
    const nk_tensor **pointers[] = {&args.weights, &args.ids, &args.counts, &args.offsets, &args.sorted_rows};
    PyObject *given[NK_ROUTE_OUTPUTS] = {NULL};
    int score = NK_TOPK_SOFTMAX, count;
    if (py_argument(call, v[X], "x", &x, &args.x) < 0 || py_argument(call, v[W], "w", &w, &args.w) < 0 ||
        py_int(v[K], "k", &args.k) < 0 || py_word(v[SCORE], "score", scores, &score) < 0 ||
        py_optional(call, v[CORRECTION_BIAS], "correction_bias", &correction_bias, &args.correction_bias) < 0 ||
        py_int(v[N_GROUP], "n_group", &args.n_group) < 0 ||
        py_int(v[TOPK_GROUP], "topk_group", &args.topk_group) < 0 ||
        py_float(v[SCALING_FACTOR], "scaling_factor", -1, &args.scaling_factor) < 0 ||
        py_scalar(call, v[ALPHA], "alpha", -1, &alpha, &args.alpha) < 0 ||
        py_bool(v[DENSE], "dense", &args.dense) < 0 ||
        py_bool(v[PERMUTATION], "permutation", &args.permutation) < 0) {
        return -1;
    }
    args.score = (nk_score)score;
    Py_ssize_t items = args.permutation ? NK_ROUTE_OUTPUTS : 2;
    if (renormalize_argument(v[RENORMALIZE], &args) < 0 ||
        py_optional_outputs(call, v[OUT],
                            args.permutation ? "(weights, ids, counts, offsets, sorted_rows)" : "(weights, ids)", items,
                            items, given, t, pointers) < 0 ||
        py_output_dtype(v[OUT_DTYPE], args.weights, &args.out_dtype) < 0 ||
        py_check(call, nk_route_out(&args, specs, &count)) < 0) {
        return -1;
    }
    *result = PyTuple_New(count);
    if (!*result) return -1;
    for (int i = 0; i < count; i++) {
        PyObject *output = NULL;
        if (py_output(call, given[i], &specs[i], &t[i], pointers[i], &output) < 0) return -1;
        if (output && PyTuple_SetItem(*result, i, output) < 0) return -1;
    }
    return py_execute(call, run_route, &args);
}

const py_operator py_route = {
    .name = "route",
    .required = 3,
    .positional = 3,
    .names = {"x", "w", "k", "score", "correction_bias", "n_group", "topk_group", "renormalize", "scaling_factor",
              "alpha", "dense", "permutation", "out", "out_dtype"},
    .run = route,
};
