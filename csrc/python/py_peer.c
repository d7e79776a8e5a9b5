/* Makes calls between the GPUs of a group. They are private, and have no plan to explain. */
#include "py_peer.h"

#include "py_args.h"
#include "nk_peer.h"
#include "py_tensor.h"

static nk_status call_reduce(const void *args, nk_exec *exec) { return nk_peer_reduce(args, exec); }
static nk_status call_dispatch(const void *args, nk_exec *exec) { return nk_peer_dispatch(args, exec); }
static nk_status call_combine(const void *args, nk_exec *exec) { return nk_peer_combine(args, exec); }

/* The first three arguments of all of them. */
static int read_group(py_call *call, PyObject *const *v, nk_tensor t[2], nk_peer_args *args)
{
    if (py_argument(call, v[0], "peers", &t[0], &args->peers) < 0) return -1;
    if (py_argument(call, v[1], "arena", &t[1], &args->arena) < 0) return -1;
    return py_int(v[2], "rank", &args->rank);
}

static int done(PyObject **result)
{
    *result = Py_NewRef(Py_None);
    return 0;
}

static int run_reduce(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_peer_reduce_args args = {.shots = 0};
    nk_tensor t[4];
    if (read_group(call, v, t, &args.group) < 0) return -1;
    if (py_argument(call, v[3], "partial", &t[2], &args.partial) < 0) return -1;
    if (py_given_output(call, v[4], "out", -1, &t[3], &args.out) < 0) return -1;
    if (py_int(v[5], "shots", &args.shots) < 0) return -1;
    return py_execute(call, call_reduce, &args) < 0 ? -1 : done(result);
}

static const py_parameter reduce_parameters[] = {{.name = "peers"}, {.name = "arena"}, {.name = "rank"},
                                                 {.name = "partial"}, {.name = "out"}, {.name = "shots"}, {0}};
const py_operator py__peer_reduce = {
    .name = "_peer_reduce", .required = 5, .positional = 6, .parameters = reduce_parameters, .run = run_reduce};

static int run_dispatch(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_peer_dispatch_args args = {0};
    nk_tensor t[8];
    if (read_group(call, v, t, &args.group) < 0) return -1;
    if (py_argument(call, v[3], "tokens", &t[2], &args.tokens) < 0) return -1;
    if (py_optional(call, v[4], "scales", &t[3], &args.scales) < 0) return -1;
    if (py_argument(call, v[5], "ids", &t[4], &args.ids) < 0) return -1;
    if (py_int(v[6], "experts", &args.experts) < 0) return -1;
    if (py_given_output(call, v[7], "out_tokens", -1, &t[5], &args.out_tokens) < 0) return -1;
    if (v[8] != Py_None && py_given_output(call, v[8], "out_scales", -1, &t[6], &args.out_scales) < 0) return -1;
    if (py_given_output(call, v[9], "out_ids", -1, &t[7], &args.out_ids) < 0) return -1;
    return py_execute(call, call_dispatch, &args) < 0 ? -1 : done(result);
}

static const py_parameter dispatch_parameters[] = {
    {.name = "peers"}, {.name = "arena"},   {.name = "rank"},       {.name = "tokens"},     {.name = "scales"},
    {.name = "ids"},   {.name = "experts"}, {.name = "out_tokens"}, {.name = "out_scales"}, {.name = "out_ids"},
    {0}};
const py_operator py__peer_dispatch = {.name = "_peer_dispatch",
                                       .required = 10,
                                       .positional = 10,
                                       .parameters = dispatch_parameters,
                                       .run = run_dispatch};

static int run_combine(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_peer_combine_args args = {0};
    nk_tensor t[8];
    if (read_group(call, v, t, &args.group) < 0) return -1;
    if (py_argument(call, v[3], "products", &t[2], &args.products) < 0) return -1;
    if (py_argument(call, v[4], "row_of", &t[3], &args.row_of) < 0) return -1;
    if (py_argument(call, v[5], "ids", &t[4], &args.ids) < 0) return -1;
    if (py_argument(call, v[6], "weights", &t[5], &args.weights) < 0) return -1;
    if (py_optional(call, v[7], "residual", &t[6], &args.residual) < 0) return -1;
    if (py_int(v[8], "experts", &args.experts) < 0) return -1;
    if (py_given_output(call, v[9], "out", -1, &t[7], &args.out) < 0) return -1;
    return py_execute(call, call_combine, &args) < 0 ? -1 : done(result);
}

static const py_parameter combine_parameters[] = {
    {.name = "peers"}, {.name = "arena"},   {.name = "rank"},     {.name = "products"}, {.name = "row_of"},
    {.name = "ids"},   {.name = "weights"}, {.name = "residual"}, {.name = "experts"},  {.name = "out"},
    {0}};
const py_operator py__peer_combine = {.name = "_peer_combine",
                                      .required = 10,
                                      .positional = 10,
                                      .parameters = combine_parameters,
                                      .run = run_combine};
