/* Reads the arguments of a call as the operator's table says, and makes calls that have one output. */
#include "py_read.h"

#include "py_args.h"
#include "py_output.h"
#include "py_tensor.h"

#include <stddef.h>
#include <string.h>

/* The second is the member behind the first. */
static int read_layouts(PyObject *object, nk_sf_layout layouts[2])
{
    return py_scale_layouts(object, &layouts[0], &layouts[1]);
}

int py_read(py_call *call, PyObject *const *v, void *args, nk_tensor t[PY_MAX_TENSORS])
{
    nk_tensor *next = t + 1;
    const nk_tensor *const *out = NULL;
    int failed = 0;
    memcpy(args, call->op->defaults, call->op->size);
    for (const py_parameter *p = call->op->parameters; p->name && !failed; p++) {
        PyObject *object = *v++;
        void *member = (char *)args + p->member;
        switch (p->kind) {
        case PY_OWN:
            break;
        case PY_TENSOR:
            failed = py_argument(call, object, p->name, next++, member);
            break;
        case PY_OPTIONAL:
            failed = py_optional(call, object, p->name, next++, member);
            break;
        case PY_SCALAR_OR_NONE:
            if (object == Py_None) object = NULL;
            /* fallthrough */
        case PY_SCALAR:
            failed = py_scalar(call, object, p->name, -1, next++, member);
            break;
        case PY_INT:
            failed = py_int(object, p->name, member);
            break;
        case PY_COUNT_OR_NONE:
            failed = py_count_or_none(object, p->name, member);
            break;
        case PY_FLOAT_OR_NONE:
            if (object == Py_None) object = NULL;
            /* fallthrough */
        case PY_FLOAT:
            failed = py_float(object, p->name, -1, member);
            break;
        case PY_BOOL:
            failed = py_bool(object, p->name, member);
            break;
        case PY_WORD:
            failed = py_word(object, p->name, p->words, member);
            break;
        case PY_LAYOUT:
            failed = py_scale_layout(object, member);
            break;
        case PY_LAYOUTS:
            failed = read_layouts(object, member);
            break;
        case PY_OUT:
            out = member;
            failed = py_optional_output(call, object, t, member);
            break;
        case PY_OUT_DTYPE:
            failed = py_output_dtype(object, *out, member);
            break;
        }
    }
    return failed;
}

int py_finish_read(py_call *call, PyObject *const *v, void *args, nk_tensor *t, PyObject **result)
{
    const py_operator *op = call->op;
    void *out = (char *)args + op->parameters[op->out].member;
    return py_finish(call, v[op->out], op->spec, op->op, args, t, out, result);
}

int py_run_one(py_call *call, PyObject *const *v, PyObject **result)
{
    _Alignas(max_align_t) unsigned char args[PY_ARGS_BYTES];
    nk_tensor t[PY_MAX_TENSORS];
    return py_read(call, v, args, t) < 0 ? -1 : py_finish_read(call, v, args, t, result);
}
