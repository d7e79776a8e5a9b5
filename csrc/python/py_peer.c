/* Makes calls between the GPUs of a group. They are private, and have no plan to explain. */
#include "py_peer.h"

#include "py_args.h"
#include "nk_peer.h"
#include "py_tensor.h"

static nk_status reduce(const void *args, nk_exec *exec) { return nk_peer_reduce(args, exec); }

/* The first three arguments of all of them. */
static int read_group(py_call *call, PyObject *const *v, nk_tensor t[2], nk_peer_args *args)
{
    if (py_argument(call, v[0], "peers", &t[0], &args->peers) < 0) return -1;
    if (py_argument(call, v[1], "arena", &t[1], &args->arena) < 0) return -1;
    return py_int(v[2], "rank", &args->rank);
}

static int run_reduce(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_peer_reduce_args args = {.shots = 0};
    nk_tensor t[4];
    if (read_group(call, v, t, &args.group) < 0) return -1;
    if (py_argument(call, v[3], "partial", &t[2], &args.partial) < 0) return -1;
    if (py_given_output(call, v[4], "out", -1, &t[3], &args.out) < 0) return -1;
    if (py_int(v[5], "shots", &args.shots) < 0 || py_execute(call, reduce, &args) < 0) return -1;
    *result = Py_NewRef(Py_None);
    return 0;
}

static const py_parameter reduce_parameters[] = {{.name = "peers"}, {.name = "arena"}, {.name = "rank"},
                                                 {.name = "partial"}, {.name = "out"}, {.name = "shots"}, {0}};
const py_operator py__peer_reduce = {
    .name = "_peer_reduce", .required = 5, .positional = 6, .parameters = reduce_parameters, .run = run_reduce};
