/* Lists the operators; the method table, the docstrings and `explain` are made of the list. */
#ifndef NK_PY_OPERATORS_H
#define NK_PY_OPERATORS_H

#include "py_invoke.h"

/* Functions of nvfp4kern, in the order of the method table. `explain` knows these. */
#define PY_OPERATORS(X)  \
    X(quantize)          \
    X(dequantize)        \
    X(to_blocked)        \
    X(from_blocked)      \
    X(gemv)              \
    X(gemm)              \
    X(dual_gemm)         \
    X(grouped_gemm)      \
    X(grouped_dual_gemm) \
    X(route)             \
    X(sort_by_expert)    \
    X(combine)

/* custom_kernel(data) of each competition problem; `run` gets data as v[0]. */
#define PY_DROP_INS(X)        \
    X(competition_gemv)       \
    X(competition_gemm)       \
    X(competition_dual_gemm)  \
    X(competition_group_gemm)

#define PY_DECLARE(op) extern const py_operator py_##op;
PY_OPERATORS(PY_DECLARE)
PY_DROP_INS(PY_DECLARE)
#undef PY_DECLARE

#endif
