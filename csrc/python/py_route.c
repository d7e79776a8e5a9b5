/* Binds route, which has two outputs, with the permutation three or four more, and perhaps the logits. Binds
 * sort_by_expert, whose four outputs are that permutation, and combine. */
#include "py_args.h"
#include "py_operators.h"
#include "py_output.h"
#include "py_tensor.h"

PY_ADAPT(combine)

static nk_status run_route(const void *args, nk_exec *exec) { return nk_route(args, exec); }
static nk_status run_sort_by_expert(const void *args, nk_exec *exec) { return nk_sort_by_expert(args, exec); }

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

/* num_local_experts goes with expert_map. */
static int local_experts_argument(PyObject *object, const nk_tensor *expert_map, int64_t *count)
{
    const bool given = object && object != Py_None;
    if (given && py_int(object, "num_local_experts", count) < 0) return -1;
    if (given && !expert_map)
        return py_fail_at(PyExc_ValueError, "num_local_experts", -1, "given, expected None without expert_map");
    if (!given && expert_map)
        return py_fail_at(PyExc_TypeError, "num_local_experts", -1, "None, expected an int where expert_map is given");
    return 0;
}

/* What `out` holds. */
static const char *names_of_outputs(const nk_route_args *args)
{
    static const char *const names[3][2] = {
        {"(weights, ids)", "(weights, ids, logits)"},
        {"(weights, ids, counts, offsets, sorted_rows)", "(weights, ids, counts, offsets, sorted_rows, logits)"},
        {"(weights, ids, counts, offsets, sorted_rows, row_of)",
         "(weights, ids, counts, offsets, sorted_rows, row_of, logits)"},
    };
    return names[args->permutation ? 1 + args->return_row_of : 0][args->return_logits];
}

/* Where the outputs of this call go, in the order of the result; returns how many there are. */
static Py_ssize_t outputs_of(nk_route_args *args, const nk_tensor **pointers[NK_ROUTE_OUTPUTS])
{
    Py_ssize_t count = 0;
    pointers[count++] = &args->weights;
    pointers[count++] = &args->ids;
    if (args->permutation) {
        pointers[count++] = &args->counts;
        pointers[count++] = &args->offsets;
        pointers[count++] = &args->sorted_rows;
        if (args->return_row_of) pointers[count++] = &args->row_of;
    }
    if (args->return_logits) pointers[count++] = &args->logits_out;
    return count;
}

/* Makes the tuple of outputs, allocates those that were not given, and runs. */
static int finish(py_call *call, int count, PyObject *const *given, const nk_tensor *specs, nk_tensor *t,
                  const nk_tensor **const *pointers, py_op *op, const void *args, PyObject **result)
{
    *result = PyTuple_New(count);
    if (!*result) return -1;
    for (int i = 0; i < count; i++) {
        PyObject *output = NULL;
        if (py_output(call, given[i], &specs[i], &t[i], pointers[i], &output) < 0) return -1;
        if (output && PyTuple_SetItem(*result, i, output) < 0) return -1;
    }
    return py_execute(call, op, args);
}

static int route(py_call *call, PyObject *const *v, PyObject **result)
{
    enum { X, W, K, LOGITS, SCORE, CORRECTION_BIAS, N_GROUP, TOPK_GROUP, RENORMALIZE, SCALING_FACTOR, ALPHA, DENSE,
           PERMUTATION, EXPERT_MAP, NUM_LOCAL_EXPERTS, RETURN_LOGITS, RETURN_ROW_OF, OUT, OUT_DTYPE };
    static const char *const scores[] = {
        [NK_TOPK_SOFTMAX] = "topk_softmax", [NK_SOFTMAX_TOPK] = "softmax_topk", [NK_SIGMOID] = "sigmoid", NULL,
    };
    nk_tensor x, w, logits, correction_bias, alpha, expert_map, t[NK_ROUTE_OUTPUTS], specs[NK_ROUTE_OUTPUTS];
    nk_route_args args = {
        .n_group = 1, .topk_group = 1, .scaling_factor = 1, .alpha.value = 1, .out_dtype = NK_F32};
    const nk_tensor **pointers[NK_ROUTE_OUTPUTS];
    PyObject *given[NK_ROUTE_OUTPUTS] = {NULL};
    int score = NK_TOPK_SOFTMAX, count;
    if (py_optional(call, v[X], "x", &x, &args.x) < 0 || py_optional(call, v[W], "w", &w, &args.w) < 0 ||
        py_optional(call, v[LOGITS], "logits", &logits, &args.logits) < 0 ||
        py_int(v[K] ? v[K] : Py_None, "k", &args.k) < 0 || py_word(v[SCORE], "score", scores, &score) < 0 ||
        py_optional(call, v[CORRECTION_BIAS], "correction_bias", &correction_bias, &args.correction_bias) < 0 ||
        py_int(v[N_GROUP], "n_group", &args.n_group) < 0 ||
        py_int(v[TOPK_GROUP], "topk_group", &args.topk_group) < 0 ||
        py_float(v[SCALING_FACTOR], "scaling_factor", -1, &args.scaling_factor) < 0 ||
        py_scalar(call, v[ALPHA], "alpha", -1, &alpha, &args.alpha) < 0 ||
        py_bool(v[DENSE], "dense", &args.dense) < 0 ||
        py_bool(v[PERMUTATION], "permutation", &args.permutation) < 0 ||
        py_optional(call, v[EXPERT_MAP], "expert_map", &expert_map, &args.expert_map) < 0 ||
        local_experts_argument(v[NUM_LOCAL_EXPERTS], args.expert_map, &args.num_local_experts) < 0 ||
        py_bool(v[RETURN_LOGITS], "return_logits", &args.return_logits) < 0 ||
        py_bool(v[RETURN_ROW_OF], "return_row_of", &args.return_row_of) < 0) {
        return -1;
    }
    args.score = (nk_score)score;
    Py_ssize_t items = outputs_of(&args, pointers);
    if (renormalize_argument(v[RENORMALIZE], &args) < 0 ||
        py_optional_outputs(call, v[OUT], names_of_outputs(&args), items, items, given, t, pointers) < 0 ||
        py_output_dtype(v[OUT_DTYPE], args.weights, &args.out_dtype) < 0 ||
        py_check(call, nk_route_out(&args, specs, &count)) < 0) {
        return -1;
    }
    return finish(call, count, given, specs, t, pointers, run_route, &args, result);
}

const py_operator py_route = {
    .name = "route",
    .required = 0,
    .positional = 3,
    .names = {"x", "w", "k", "logits", "score", "correction_bias", "n_group", "topk_group", "renormalize",
              "scaling_factor", "alpha", "dense", "permutation", "expert_map", "num_local_experts", "return_logits",
              "return_row_of", "out", "out_dtype"},
    .run = route,
};

static int sort_by_expert(py_call *call, PyObject *const *v, PyObject **result)
{
    enum { IDS, NUM_EXPERTS, EXPERT_MAP, NUM_LOCAL_EXPERTS, OUT };
    nk_tensor ids, expert_map, t[NK_SORT_OUTPUTS], specs[NK_SORT_OUTPUTS];
    nk_sort_by_expert_args args = {0};
    const nk_tensor **pointers[] = {&args.counts, &args.offsets, &args.sorted_rows, &args.row_of};
    PyObject *given[NK_SORT_OUTPUTS] = {NULL};
    if (py_argument(call, v[IDS], "ids", &ids, &args.ids) < 0 ||
        py_int(v[NUM_EXPERTS], "num_experts", &args.num_experts) < 0 ||
        py_optional(call, v[EXPERT_MAP], "expert_map", &expert_map, &args.expert_map) < 0 ||
        local_experts_argument(v[NUM_LOCAL_EXPERTS], args.expert_map, &args.num_local_experts) < 0 ||
        py_optional_outputs(call, v[OUT], "(counts, offsets, sorted_rows, row_of)", NK_SORT_OUTPUTS, NK_SORT_OUTPUTS,
                            given, t, pointers) < 0 ||
        py_check(call, nk_sort_by_expert_out(&args, specs)) < 0) {
        return -1;
    }
    return finish(call, NK_SORT_OUTPUTS, given, specs, t, pointers, run_sort_by_expert, &args, result);
}

const py_operator py_sort_by_expert = {
    .name = "sort_by_expert",
    .required = 2,
    .positional = 2,
    .names = {"ids", "num_experts", "expert_map", "num_local_experts", "out"},
    .run = sort_by_expert,
};

static int combine(py_call *call, PyObject *const *v, PyObject **result)
{
    enum { PRODUCTS, ROW_OF, WEIGHTS, RESIDUAL, OUT, OUT_DTYPE };
    nk_tensor products, row_of, weights, residual, out;
    nk_combine_args args = {.out_dtype = NK_F16};
    if (py_argument(call, v[PRODUCTS], "products", &products, &args.products) < 0 ||
        py_argument(call, v[ROW_OF], "row_of", &row_of, &args.row_of) < 0 ||
        py_argument(call, v[WEIGHTS], "weights", &weights, &args.weights) < 0 ||
        py_optional(call, v[RESIDUAL], "residual", &residual, &args.residual) < 0 ||
        py_optional_output(call, v[OUT], &out, &args.out) < 0 ||
        py_output_dtype(v[OUT_DTYPE], args.out, &args.out_dtype) < 0) {
        return -1;
    }
    return py_finish(call, v[OUT], spec_combine, run_combine, &args, &out, &args.out, result);
}

const py_operator py_combine = {
    .name = "combine",
    .required = 3,
    .positional = 3,
    .names = {"products", "row_of", "weights", "residual", "out", "out_dtype"},
    .run = combine,
};
