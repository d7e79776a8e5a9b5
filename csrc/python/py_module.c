/* Defines the module nvfp4kern._C: its functions and its state. */
#include "py_args.h"
#include "py_peer.h"

#include <py_docs.h>
#include <py_operators.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------------------- */
/* Operators                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

#define METHOD(op)                                                                                    \
    static PyObject *op(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) \
    {                                                                                                 \
        return py_invoke(module, &py_##op, args, nargs, kwnames, false);                              \
    }
PY_OPERATORS(METHOD)
PY_DROP_INS(METHOD)

#define NAME(op) #op,
#define ADDRESS(op) &py_##op,

static PyObject *explain(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const char *const names[] = {PY_OPERATORS(NAME) NULL};
    static const py_operator *const operators[] = {PY_OPERATORS(ADDRESS)};
    int op;
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "explain() missing 1 required positional argument: 'op'");
        return NULL;
    }
    if (py_word(args[0], "op", names, &op) < 0) return NULL;
    return py_invoke(module, operators[op], args + 1, nargs - 1, kwnames, true);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The machine                                                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

static PyObject *backends(PyObject *module, PyObject *unused)
{
    (void)unused;
    py_call call = {.state = PyModule_GetState(module)};
    nk_backend_info info;
    nk_settings settings;
    if (py_enter_thread() < 0) return NULL;
    if (py_check(&call, nk_settings_read(&settings)) < 0) return NULL; /* asking a row may open the driver */
    PyObject *list = PyList_New(0);
    for (int i = 0; list && nk_backend_list(i, &info); i++) {
        PyObject *row = Py_BuildValue("{sssssOszszsz}", "name", info.name, "devices", info.devices, "available",
                                      info.why_not ? Py_False : Py_True, "why_not", info.why_not, "code", info.code,
                                      "needs", info.needs);
        if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* The numbers that a family says, and the operators if it says any; NULL with an exception. */
static PyObject *tile_traits(const nk_tile_info *info)
{
    const struct {
        const char *name;
        int32_t value;
    } numbers[] = {{"tile_m", info->tile_m},         {"tile_n", info->tile_n},
                   {"tile_k", info->tile_k},         {"stages", info->stages},
                   {"cluster", info->cluster},       {"split_k", info->split_k},
                   {"warpgroups", info->warpgroups}, {"ctas_per_mma", info->ctas_per_mma},
                   {"multicast", info->multicast}};
    PyObject *traits = Py_BuildValue("{ssssss}", "row", info->row, "family", info->family, "tile", info->tile);
    PyObject *operators = PyList_New(0);
    bool failed = !traits || !operators;
    for (size_t i = 0; !failed && i < sizeof numbers / sizeof numbers[0]; i++) {
        PyObject *value = numbers[i].value ? PyLong_FromLong(numbers[i].value) : NULL;
        failed = numbers[i].value && (!value || PyDict_SetItemString(traits, numbers[i].name, value) < 0);
        Py_XDECREF(value);
    }
    for (const char *const *op = info->operators; !failed && *op; op++) {
        PyObject *name = PyUnicode_FromString(*op);
        failed = !name || PyList_Append(operators, name) < 0;
        Py_XDECREF(name);
    }
    if (failed || (info->operators[0] && PyDict_SetItemString(traits, "operators", operators) < 0)) Py_CLEAR(traits);
    Py_XDECREF(operators);
    return traits;
}

static PyObject *tiles(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    nk_tile_info info;
    PyObject *all = PyDict_New();
    for (int i = 0; all && nk_tile_list(i, &info); i++) {
        PyObject *name = PyUnicode_FromFormat("%s/%s:%s", info.row, info.family, info.tile);
        PyObject *traits = name ? tile_traits(&info) : NULL;
        if (!traits || PyDict_SetItem(all, name, traits) < 0) Py_CLEAR(all);
        Py_XDECREF(name);
        Py_XDECREF(traits);
    }
    return all;
}

/* Reads "cpu", "cuda" or "cuda:<index>". */
static int parse_device(PyObject *object, nk_device *device)
{
    PyObject *text = PyObject_Str(object);
    const char *s = text ? py_text(text) : NULL;
    int failed = s ? 0 : -1;
    *device = (nk_device){NK_CUDA, 0};
    if (s && strcmp(s, "cpu") == 0) {
        device->type = NK_CPU;
    } else if (s && strcmp(s, "cuda") != 0) {
        char *end = NULL;
        long index = strncmp(s, "cuda:", 5) == 0 && s[5] >= '0' && s[5] <= '9' ? strtol(s + 5, &end, 10) : -1;
        if (index < 0 || index > INT32_MAX || *end) {
            failed = py_fail_at(PyExc_ValueError, "device", -1, "%R, expected 'cpu', 'cuda' or 'cuda:<index>'", object);
        }
        device->index = (int32_t)index;
    }
    Py_XDECREF(text);
    return failed;
}

static nk_status warm(const void *device, nk_exec *exec)
{
    (void)exec;
    return device ? nk_warmup(*(const nk_device *)device) : nk_warmup_all();
}

static int run_warmup(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_device device;
    bool one = v[0] && v[0] != Py_None;
    if (one && parse_device(v[0], &device) < 0) return -1;
    if (py_execute(call, warm, one ? &device : NULL) < 0) return -1;
    *result = Py_NewRef(Py_None);
    return 0;
}

static const py_parameter device_parameters[] = {{.name = "device"}, {0}};
static const py_operator py_warmup = {
    .name = "warmup", .positional = 1, .parameters = device_parameters, .run = run_warmup};
METHOD(warmup)
METHOD(_peer_reduce)
METHOD(_peer_dispatch)
METHOD(_peer_combine)

/* ---------------------------------------------------------------------------------------------------------------- */
/* The module                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

#define FASTCALL(name, doc) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL | METH_KEYWORDS, doc},
#define OPERATOR(op) FASTCALL(op, py_doc_##op)

static PyMethodDef methods[] = {
    PY_OPERATORS(OPERATOR) FASTCALL(explain, py_doc_explain){"backends", backends, METH_NOARGS, py_doc_backends},
    FASTCALL(warmup, py_doc_warmup){"_tiles", tiles, METH_NOARGS, py_doc__tiles},
    FASTCALL(_peer_reduce, py_doc__peer_reduce) FASTCALL(_peer_dispatch, py_doc__peer_dispatch)
    FASTCALL(_peer_combine, py_doc__peer_combine)
    PY_DROP_INS(OPERATOR){NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    /* Deleters of NumPy's and torch's capsules take the lock of the main interpreter, and would wait for ever. */
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError,
                        "nvfp4kern works in the main interpreter only, and this is a subinterpreter");
        return -1;
    }
    if (py_init_threads() < 0) return -1;
    py_state *state = PyModule_GetState(module);
    state->backend_error = PyErr_NewExceptionWithDoc(
        "nvfp4kern.BackendError", "What this machine or this build of nvfp4kern cannot do.", PyExc_RuntimeError, NULL);
    if (!state->backend_error) return -1;
    if (PyModule_AddObjectRef(module, "BackendError", state->backend_error) < 0) return -1;
    if (PyModule_AddStringConstant(module, "_sources", NK_SOURCES) < 0) return -1;
    return PyModule_AddStringConstant(module, "__version__", NK_VERSION);
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    py_state *state = PyModule_GetState(module);
    Py_VISIT(state->backend_error);
    Py_VISIT(state->nvfp4);
    Py_VISIT(state->apart);
    Py_VISIT(state->layout_of);
    Py_VISIT(state->empty);
    Py_VISIT(state->current_stream);
    Py_VISIT(state->protocol);
    for (int i = 0; i < PY_EXPORTER_TYPES; i++) {
        Py_VISIT(state->exporters[i].type);
        Py_VISIT(state->exporters[i].address);
        Py_VISIT(state->exporters[i].written);
    }
    return 0;
}

static int clear(PyObject *module)
{
    py_state *state = PyModule_GetState(module);
    Py_CLEAR(state->backend_error);
    Py_CLEAR(state->nvfp4);
    Py_CLEAR(state->apart);
    Py_CLEAR(state->layout_of);
    Py_CLEAR(state->empty);
    Py_CLEAR(state->current_stream);
    Py_CLEAR(state->protocol);
    for (int i = 0; i < PY_EXPORTER_TYPES; i++) {
        Py_CLEAR(state->exporters[i].type);
        Py_CLEAR(state->exporters[i].address);
        Py_CLEAR(state->exporters[i].written);
    }
    return 0;
}

static void free_state(void *module) { clear(module); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "nvfp4kern._C", .m_size = sizeof(py_state), .m_methods = methods,
    .m_slots = slots,      .m_traverse = traverse,   .m_clear = clear,           .m_free = free_state,
};

PyMODINIT_FUNC PyInit__C(void) { return PyModuleDef_Init(&definition); }
