/* Ends calls of experts' products, whose result is a tensor of floats or, with quantized=True, an NVFP4. */
#ifndef NK_PY_EXPERTS_H
#define NK_PY_EXPERTS_H

#include "py_invoke.h"

/* The last arguments of such an operator, in their order. */
enum {
    PY_EXPERTS_OUT,
    PY_EXPERTS_OUT_DTYPE,
    PY_EXPERTS_QUANTIZED,
    PY_EXPERTS_GLOBAL_SCALE,
    PY_EXPERTS_GLOBAL_SCALE_INVERSE,
    PY_EXPERTS_DATA_DTYPE,
    PY_EXPERTS_COUNT
};
#define PY_EXPERTS_ARE_LAST(op) \
    _Static_assert(PY_##op##_DATA_DTYPE - PY_##op##_OUT == PY_EXPERTS_COUNT - 1, "the table has them in this order")

/* A call whose arguments before these are read: the struct of the C API, and its members for outputs. */
typedef struct py_experts {
    py_spec *spec;
    py_op *op;
    const void *args;
    const nk_tensor **out;
    nk_dtype *out_dtype;
    nk_encoding_args *encoding;
} py_experts;

/* Reads the last arguments, `v`, and makes the call. */
int py_finish_experts(py_call *call, PyObject *const *v, const py_experts *experts, PyObject **result);

/* Refuses what goes with quantized=True alone. */
int py_refuse_encoding(PyObject *const *v);

#endif
