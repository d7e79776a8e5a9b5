/* Makes calls of route, which has two outputs, with the permutation three or four more, and perhaps the logits, and of
 * sort_by_expert, whose four outputs are that permutation. */
#include "py_args.h"
#include "py_output.h"
#include "py_read.h"
#include "py_tensor.h"

#include <py_operators.h>

static nk_status run_route(const void *args, nk_exec *exec) { return nk_route(args, exec); }
static nk_status run_sort_by_expert(const void *args, nk_exec *exec) { return nk_sort_by_expert(args, exec); }

/* renormalize=None: False where the score is a softmax over all experts or the logit, else True. */
static int renormalize_argument(PyObject *object, nk_route_args *args)
{
    bool is_none;
    if (py_bool_or_none(object, "renormalize", &args->renormalize, &is_none) < 0) return -1;
    if (is_none) args->renormalize = args->score != NK_SOFTMAX_TOPK && args->score != NK_LOGITS;
    if (!args->renormalize && args->score == NK_TOPK_SOFTMAX) {
        return py_fail_at(PyExc_ValueError, "renormalize", -1,
                          "False, expected None or True: with score='topk_softmax' the weights always sum to 1");
    }
    if (args->renormalize && args->score == NK_LOGITS) {
        return py_fail_at(PyExc_ValueError, "renormalize", -1,
                          "True, expected None or False: with score='logits' the weights are the logits");
    }
    return 0;
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

int py_run_route(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_tensor inputs[PY_MAX_TENSORS], t[NK_ROUTE_OUTPUTS], specs[NK_ROUTE_OUTPUTS];
    nk_route_args args;
    const nk_tensor **pointers[NK_ROUTE_OUTPUTS];
    PyObject *given[NK_ROUTE_OUTPUTS] = {NULL};
    PyObject *k = v[PY_ROUTE_K] ? v[PY_ROUTE_K] : Py_None;
    int count;
    if (py_read(call, v, &args, inputs) < 0 || py_int(k, "k", &args.k) < 0 ||
        local_experts_argument(v[PY_ROUTE_NUM_LOCAL_EXPERTS], args.expert_map, &args.num_local_experts) < 0) {
        return -1;
    }
    Py_ssize_t items = outputs_of(&args, pointers);
    if (renormalize_argument(v[PY_ROUTE_RENORMALIZE], &args) < 0 ||
        py_optional_outputs(call, v[PY_ROUTE_OUT], names_of_outputs(&args), items, items, given, t, pointers) < 0 ||
        py_output_dtype(v[PY_ROUTE_OUT_DTYPE], args.weights, &args.out_dtype) < 0 ||
        py_check(call, nk_route_out(&args, specs, &count)) < 0) {
        return -1;
    }
    return finish(call, count, given, specs, t, pointers, run_route, &args, result);
}

int py_run_sort_by_expert(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_tensor inputs[PY_MAX_TENSORS], t[NK_SORT_OUTPUTS], specs[NK_SORT_OUTPUTS];
    nk_sort_by_expert_args args;
    const nk_tensor **pointers[] = {&args.counts, &args.offsets, &args.sorted_rows, &args.row_of};
    PyObject *given[NK_SORT_OUTPUTS] = {NULL};
    if (py_read(call, v, &args, inputs) < 0 ||
        local_experts_argument(v[PY_SORT_BY_EXPERT_NUM_LOCAL_EXPERTS], args.expert_map, &args.num_local_experts) < 0 ||
        py_optional_outputs(call, v[PY_SORT_BY_EXPERT_OUT], "(counts, offsets, sorted_rows, row_of)", NK_SORT_OUTPUTS,
                            NK_SORT_OUTPUTS, given, t, pointers) < 0 ||
        py_check(call, nk_sort_by_expert_out(&args, specs)) < 0) {
        return -1;
    }
    return finish(call, NK_SORT_OUTPUTS, given, specs, t, pointers, run_sort_by_expert, &args, result);
}
