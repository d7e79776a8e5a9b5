/* Makes a call from end to end: parse, run, execute, explain. */
#include "py_invoke.h"

#include "py_args.h"
#include "py_tensor.h"

#include <string.h>

/* ---------------------------------------------------------------------------------------------------------------- */
/* Arguments                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Which of the operator's names that is, or -1. Most differ in the first letter, which needs no call. */
static int find_name(const py_operator *op, const char *keyword)
{
    for (int i = 0; op->parameters[i].name; i++) {
        const char *name = op->parameters[i].name;
        if (name[0] == keyword[0] && strcmp(name, keyword) == 0) return i;
    }
    return -1;
}

static int too_many(const py_operator *op, Py_ssize_t nargs)
{
    if (op->required < op->positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes from %d to %d positional arguments but %zd were given", op->name,
                     op->required, op->positional, nargs);
    } else {
        PyErr_Format(PyExc_TypeError, "%s() takes %d positional argument%s but %zd were given", op->name,
                     op->positional, op->positional == 1 ? "" : "s", nargs);
    }
    return -1;
}

/* "f() missing 2 required positional arguments: 'b' and 'sfa'" */
static int missing(const py_operator *op, PyObject *const *values)
{
    char names[256] = "";
    int left = 0, count = 0;
    for (int i = 0; i < op->required; i++)
        left += !values[i];
    for (int i = 0; i < op->required; i++) {
        if (values[i]) continue;
        size_t at = strlen(names);
        const char *before = count == 0 ? "" : count + 1 < left ? ", " : left == 2 ? " and " : ", and ";
        PyOS_snprintf(names + at, sizeof names - at, "%s'%s'", before, op->parameters[i].name);
        count++;
    }
    PyErr_Format(PyExc_TypeError, "%s() missing %d required positional argument%s: %s", op->name, count,
                 count == 1 ? "" : "s", names);
    return -1;
}

/* Binds a vectorcall's arguments to the names of `op`, and raises what a Python function of that signature would. */
static int parse(const py_operator *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **values)
{
    if (nargs > op->positional) return too_many(op, nargs);
    for (Py_ssize_t i = 0; i < nargs; i++)
        values[i] = args[i];

    Py_ssize_t keywords = kwnames ? PyTuple_Size(kwnames) : 0;
    for (Py_ssize_t i = 0; i < keywords; i++) {
        PyObject *name = PyTuple_GetItem(kwnames, i);
        const char *keyword = py_text(name);
        if (!keyword) return -1;
        int at = find_name(op, keyword);
        if (at < 0) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", op->name, name);
            return -1;
        }
        if (values[at]) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'", op->name, keyword);
            return -1;
        }
        values[at] = args[nargs + i];
    }
    for (int i = 0; i < op->required; i++) {
        if (!values[i]) return missing(op, values);
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Running                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

#define WORKSPACE_ALIGNMENT 64 /* bytes */

/* What the C API hands back when it asks for a workspace. */
typedef struct execution {
    py_call *call;
    PyThreadState *thread; /* of the caller, while it has no GIL */
} execution;

/* On the CPU a bytearray: an order of magnitude cheaper than asking a framework. */
static int new_workspace(py_call *call, int64_t bytes, void **workspace)
{
    nk_tensor t = {
        .name = "workspace", .index = -1, .dtype = NK_U8, .device = call->device, .ndim = 1, .shape = {bytes}};
    if (call->device.type == NK_CUDA) {
        PyObject *object = py_empty(call, &t, &t);
        if (!object || py_keep(call, object) < 0) return -1;
    } else {
        PyObject *object = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)bytes + WORKSPACE_ALIGNMENT);
        if (!object || py_keep(call, object) < 0) return -1;
        uintptr_t begin = (uintptr_t)PyByteArray_AsString(object);
        t.data = (void *)((begin + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT);
    }
    *workspace = t.data;
    return 0;
}

/* Runs between plan and run, where the thread has released the GIL. A Python exception stays set until py_execute. */
static nk_status allocate(void *context, int64_t bytes, void **workspace)
{
    execution *e = context;
    PyEval_RestoreThread(e->thread);
    int failed = new_workspace(e->call, bytes, workspace);
    e->thread = PyEval_SaveThread();
    return failed ? NK_NEEDS_WORKSPACE : NK_OK;
}

/* Runs the handlers of signals that have come, as Python itself does between bytecodes: the main thread's alone. */
static bool interrupted(void *context)
{
    execution *e = context;
    PyEval_RestoreThread(e->thread);
    bool raised = PyErr_CheckSignals() < 0;
    e->thread = PyEval_SaveThread();
    return raised;
}

/* Also where the run has ended early, by an exception that stays: outputs hold anything then. */
static int tell_written(py_call *call, int failed)
{
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    if (failed) PyErr_Fetch(&type, &value, &traceback);
    PyObject *told = PyObject_CallFunctionObjArgs(call->written, call->outputs, NULL);
    Py_XDECREF(told);
    if (failed) PyErr_Restore(type, value, traceback);
    return failed || !told ? -1 : 0;
}

int py_execute(py_call *call, py_op *op, const void *args)
{
    execution e = {.call = call};
    nk_settings settings;
    if (py_check(call, nk_settings_read(&settings)) < 0) return -1;
    call->exec.settings = &settings;
    call->exec.allocate = allocate;
    call->exec.interrupted = interrupted;
    call->exec.context = &e;
    e.thread = PyEval_SaveThread();
    nk_status status = op(args, &call->exec);
    PyEval_RestoreThread(e.thread);
    const bool refused = status == NK_VALUE_ERROR || status == NK_TYPE_ERROR || status == NK_NEEDS_WORKSPACE;
    int failed = py_check(call, status);
    return call->outputs && !refused ? tell_written(call, failed) : failed;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The plan, for explain                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

static int set(PyObject *dict, const char *key, PyObject *value)
{
    int failed = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return failed;
}

/* Numbers that do not apply are zero in the plan and absent here. */
static PyObject *plan_dict(const nk_plan *plan)
{
    const struct {
        const char *key, *value;
    } texts[] = {{"backend", plan->backend}, {"kernel", plan->kernel}, {"why", plan->why}, {"tile", plan->tile}};
    const struct {
        const char *key;
        int64_t value;
        bool always;
    } numbers[] = {
        {"tile_m", plan->tile_m, false},
        {"tile_n", plan->tile_n, false},
        {"tile_k", plan->tile_k, false},
        {"grid", plan->grid, false},
        {"threads", plan->threads, false},
        {"stages", plan->stages, false},
        {"cluster", plan->cluster, false},
        {"split", plan->split, false},
        {"steps_per_cta", plan->steps_per_cta, false},
        {"slices", plan->slices, false},
        {"workspace_bytes", plan->workspace_bytes, true},
    };
    PyObject *dict = PyDict_New();
    if (!dict) return NULL;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i].value && set(dict, texts[i].key, PyUnicode_FromString(texts[i].value)) < 0) goto failed;
    }
    if (plan->declined && set(dict, "declined", PyUnicode_FromFormat("%s: %s", plan->declined_by, plan->declined)) < 0)
        goto failed;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!numbers[i].value && !numbers[i].always) continue;
        if (set(dict, numbers[i].key, PyLong_FromLongLong(numbers[i].value)) < 0) goto failed;
    }
    if (set(dict, "batch_invariant", PyBool_FromLong(plan->batch_invariant)) < 0) goto failed;
    return dict;
failed:
    Py_DECREF(dict);
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* A call from end to end                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

PyObject *py_invoke(PyObject *module, const py_operator *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                    bool explain)
{
    PyObject *values[PY_MAX_ARGS] = {NULL}, *result = NULL;
    py_call call = {.state = PyModule_GetState(module), .op = op, .exec.dry_run = explain};
    if (py_enter_thread() < 0) return NULL;
    bool failed = parse(op, args, nargs, kwnames, values) < 0 || op->run(&call, values, &result) < 0;
    if (failed || explain) Py_CLEAR(result);
    if (!failed && explain) result = plan_dict(&call.exec.plan);
    py_release(call.kept);
    Py_XDECREF(call.outputs);
    Py_XDECREF(call.written);
    return result;
}
