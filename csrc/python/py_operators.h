/* Lists the operators, and says where their arguments are.
 * Written by build_tools/generate.py from operators.py; do not edit. */
#ifndef NK_PY_OPERATORS_H
#define NK_PY_OPERATORS_H

#include "py_invoke.h"

/* Functions of nvfp4kern, in the order of the method table. `explain` knows these. */
#define PY_OPERATORS(X) \
    X(quantize) \
    X(dequantize) \
    X(to_blocked) \
    X(from_blocked) \
    X(gemv) \
    X(gemm) \
    X(dual_gemm) \
    X(grouped_gemm) \
    X(grouped_dual_gemm) \
    X(route) \
    X(sort_by_expert) \
    X(combine)

/* custom_kernel(data) of each competition problem; `run` gets data as v[0]. */
#define PY_DROP_INS(X) \
    X(competition_gemv) \
    X(competition_gemm) \
    X(competition_dual_gemm) \
    X(competition_group_gemm)

#define PY_DECLARE(op) extern const py_operator py_##op;
PY_OPERATORS(PY_DECLARE)
PY_DROP_INS(PY_DECLARE)
#undef PY_DECLARE

/* Those whose calls are no table's, and where their arguments are in `v`. */
py_runner py_run_quantize;
py_runner py_run_dequantize;
py_runner py_run_grouped_gemm;
py_runner py_run_grouped_dual_gemm;
py_runner py_run_route;
py_runner py_run_sort_by_expert;
enum {
    PY_QUANTIZE_X, PY_QUANTIZE_UP, PY_QUANTIZE_GLOBAL_SCALE, PY_QUANTIZE_SCALE_LAYOUT, PY_QUANTIZE_OFFSETS,
    PY_QUANTIZE_OUT, PY_QUANTIZE_DATA_DTYPE
};
enum {
    PY_DEQUANTIZE_Q, PY_DEQUANTIZE_SCALE_LAYOUT, PY_DEQUANTIZE_OUT, PY_DEQUANTIZE_OUT_DTYPE
};
enum {
    PY_GROUPED_GEMM_A, PY_GROUPED_GEMM_B, PY_GROUPED_GEMM_SFA, PY_GROUPED_GEMM_SFB, PY_GROUPED_GEMM_OFFSETS,
    PY_GROUPED_GEMM_ROWS, PY_GROUPED_GEMM_ROWS_PER_TOKEN, PY_GROUPED_GEMM_ALPHA, PY_GROUPED_GEMM_BIAS,
    PY_GROUPED_GEMM_SCALE_LAYOUT, PY_GROUPED_GEMM_OUT, PY_GROUPED_GEMM_OUT_DTYPE
};
enum {
    PY_GROUPED_DUAL_GEMM_A, PY_GROUPED_DUAL_GEMM_B, PY_GROUPED_DUAL_GEMM_SFA, PY_GROUPED_DUAL_GEMM_SFB,
    PY_GROUPED_DUAL_GEMM_OFFSETS, PY_GROUPED_DUAL_GEMM_ROWS, PY_GROUPED_DUAL_GEMM_ROWS_PER_TOKEN,
    PY_GROUPED_DUAL_GEMM_ALPHA, PY_GROUPED_DUAL_GEMM_ACTIVATION, PY_GROUPED_DUAL_GEMM_SCALE_LAYOUT,
    PY_GROUPED_DUAL_GEMM_OUT, PY_GROUPED_DUAL_GEMM_OUT_DTYPE, PY_GROUPED_DUAL_GEMM_QUANTIZED,
    PY_GROUPED_DUAL_GEMM_GLOBAL_SCALE, PY_GROUPED_DUAL_GEMM_DATA_DTYPE
};
enum {
    PY_ROUTE_X, PY_ROUTE_W, PY_ROUTE_K, PY_ROUTE_LOGITS, PY_ROUTE_SCORE, PY_ROUTE_CORRECTION_BIAS, PY_ROUTE_N_GROUP,
    PY_ROUTE_TOPK_GROUP, PY_ROUTE_RENORMALIZE, PY_ROUTE_SCALING_FACTOR, PY_ROUTE_ALPHA, PY_ROUTE_DENSE,
    PY_ROUTE_PERMUTATION, PY_ROUTE_EXPERT_MAP, PY_ROUTE_NUM_LOCAL_EXPERTS, PY_ROUTE_RETURN_LOGITS,
    PY_ROUTE_RETURN_ROW_OF, PY_ROUTE_OUT, PY_ROUTE_OUT_DTYPE
};
enum {
    PY_SORT_BY_EXPERT_IDS, PY_SORT_BY_EXPERT_NUM_EXPERTS, PY_SORT_BY_EXPERT_EXPERT_MAP,
    PY_SORT_BY_EXPERT_NUM_LOCAL_EXPERTS, PY_SORT_BY_EXPERT_OUT
};

#endif
