/* Says of each operator which arguments it has and how they are read.
 * Written by build_tools/generate.py from operators.py; do not edit. */
#include "py_operators.h"

#include "py_output.h"
#include "py_read.h"

#define P(name, kind, member, words) {#name, PY_##kind, offsetof(ARGS, member), words}
#define OWN(name) {#name, PY_OWN, 0, NULL}
#define FITS(type) _Static_assert(sizeof(type) <= PY_ARGS_BYTES, "py_run_one has room for it");
PY_ADAPT(dequantize)
PY_ADAPT(relayout)
PY_ADAPT(gemv)
PY_ADAPT(gemm)
PY_ADAPT(dual_gemm)
PY_ADAPT(grouped_gemm)
PY_ADAPT(combine)

static const char *const activation_words[] = {
    [NK_SILU] = "silu", [NK_GELU] = "gelu", [NK_GELU_TANH] = "gelu_tanh", [NK_RELU] = "relu",
    [NK_IDENTITY] = "identity", NULL
};

static const char *const score_words[] = {
    [NK_TOPK_SOFTMAX] = "topk_softmax", [NK_SOFTMAX_TOPK] = "softmax_topk", [NK_SIGMOID] = "sigmoid", NULL
};

#define ARGS nk_quantize_args
FITS(ARGS)
const py_operator py_quantize = {
    .name = "quantize", .required = 1, .positional = 1, .size = sizeof(ARGS),
    .defaults = &(const ARGS){.global_scale.value = 1}, .run = py_run_quantize,
    .parameters = (const py_parameter[]){
        P(x, TENSOR, x, NULL), P(up, OPTIONAL, up, NULL), OWN(global_scale), P(scale_layout, LAYOUT, layout, NULL),
        P(offsets, OPTIONAL, offsets, NULL), OWN(out), OWN(data_dtype), {0}
    }
};
#undef ARGS

#define ARGS nk_dequantize_args
FITS(ARGS)
const py_operator py_dequantize = {
    .name = "dequantize", .required = 1, .positional = 1, .size = sizeof(ARGS),
    .defaults = &(const ARGS){.global_scale.value = 1, .out_dtype = NK_F16}, .run = py_run_dequantize, .out = 2,
    .spec = spec_dequantize, .op = run_dequantize,
    .parameters = (const py_parameter[]){
        OWN(q), P(scale_layout, LAYOUT, layout, NULL), P(out, OUT, out, NULL), P(out_dtype, OUT_DTYPE, out_dtype, NULL),
        {0}
    }
};
#undef ARGS

#define ARGS nk_relayout_args
FITS(ARGS)
const py_operator py_to_blocked = {
    .name = "to_blocked", .required = 1, .positional = 1, .size = sizeof(ARGS),
    .defaults = &(const ARGS){.to = NK_SF_BLOCKED}, .run = py_run_one, .out = 1, .spec = spec_relayout,
    .op = run_relayout,
    .parameters = (const py_parameter[]){
        P(scales, TENSOR, in, NULL), P(out, OUT, out, NULL), {0}
    }
};
#undef ARGS

#define ARGS nk_relayout_args
FITS(ARGS)
const py_operator py_from_blocked = {
    .name = "from_blocked", .required = 3, .positional = 3, .size = sizeof(ARGS),
    .defaults = &(const ARGS){.to = NK_SF_LINEAR}, .run = py_run_one, .out = 3, .spec = spec_relayout,
    .op = run_relayout,
    .parameters = (const py_parameter[]){
        P(buffer, TENSOR, in, NULL), P(rows, INT, rows, NULL), P(cols, INT, cols, NULL), P(out, OUT, out, NULL), {0}
    }
};
#undef ARGS

#define ARGS nk_gemm_args
FITS(ARGS)
const py_operator py_gemv = {
    .name = "gemv", .required = 3, .positional = 4, .size = sizeof(ARGS), .defaults = &(const ARGS){.alpha.value = 1,
    .out_dtype = NK_F16}, .run = py_run_one, .out = 6, .spec = spec_gemv, .op = run_gemv,
    .parameters = (const py_parameter[]){
        P(a, TENSOR, a, NULL), P(b, TENSOR, b, NULL), P(sfa, OPTIONAL, sfa, NULL), P(sfb, OPTIONAL, sfb, NULL),
        P(alpha, SCALAR, alpha, NULL), P(scale_layout, LAYOUTS, sfa_layout, NULL), P(out, OUT, out, NULL),
        P(out_dtype, OUT_DTYPE, out_dtype, NULL), {0}
    }
};
#undef ARGS

#define ARGS nk_gemm_args
FITS(ARGS)
const py_operator py_gemm = {
    .name = "gemm", .required = 4, .positional = 4, .size = sizeof(ARGS), .defaults = &(const ARGS){.alpha.value = 1,
    .out_dtype = NK_F16}, .run = py_run_one, .out = 7, .spec = spec_gemm, .op = run_gemm,
    .parameters = (const py_parameter[]){
        P(a, TENSOR, a, NULL), P(b, TENSOR, b, NULL), P(sfa, OPTIONAL, sfa, NULL), P(sfb, OPTIONAL, sfb, NULL),
        P(alpha, SCALAR, alpha, NULL), P(bias, OPTIONAL, bias, NULL), P(scale_layout, LAYOUTS, sfa_layout, NULL),
        P(out, OUT, out, NULL), P(out_dtype, OUT_DTYPE, out_dtype, NULL), {0}
    }
};
#undef ARGS

#define ARGS nk_dual_gemm_args
FITS(ARGS)
const py_operator py_dual_gemm = {
    .name = "dual_gemm", .required = 6, .positional = 6, .size = sizeof(ARGS),
    .defaults = &(const ARGS){.alpha1.value = 1, .alpha2.value = 1, .out_dtype = NK_F16}, .run = py_run_one, .out = 10,
    .spec = spec_dual_gemm, .op = run_dual_gemm,
    .parameters = (const py_parameter[]){
        P(a, TENSOR, a, NULL), P(b1, TENSOR, b1, NULL), P(b2, TENSOR, b2, NULL), P(sfa, OPTIONAL, sfa, NULL),
        P(sfb1, OPTIONAL, sfb1, NULL), P(sfb2, OPTIONAL, sfb2, NULL), P(alpha1, SCALAR, alpha1, NULL),
        P(alpha2, SCALAR, alpha2, NULL), P(activation, WORD, activation, activation_words),
        P(scale_layout, LAYOUTS, sfa_layout, NULL), P(out, OUT, out, NULL), P(out_dtype, OUT_DTYPE, out_dtype, NULL),
        {0}
    }
};
#undef ARGS

#define ARGS nk_grouped_gemm_args
FITS(ARGS)
const py_operator py_grouped_gemm = {
    .name = "grouped_gemm", .required = 2, .positional = 4, .size = sizeof(ARGS),
    .defaults = &(const ARGS){.rows_per_token = 1, .all.alpha.value = 1, .all.out_dtype = NK_F16},
    .run = py_run_grouped_gemm, .out = 10, .spec = spec_grouped_gemm, .op = run_grouped_gemm,
    .parameters = (const py_parameter[]){
        P(a, TENSOR, all.a, NULL), P(b, TENSOR, all.b, NULL), P(sfa, OPTIONAL, all.sfa, NULL),
        P(sfb, OPTIONAL, all.sfb, NULL), P(offsets, OPTIONAL, offsets, NULL), P(rows, OPTIONAL, rows, NULL),
        P(rows_per_token, INT, rows_per_token, NULL), P(alpha, SCALAR_OR_NONE, all.alpha, NULL),
        P(bias, OPTIONAL, all.bias, NULL), P(scale_layout, LAYOUTS, all.sfa_layout, NULL), P(out, OUT, all.out, NULL),
        P(out_dtype, OUT_DTYPE, all.out_dtype, NULL), {0}
    }
};
#undef ARGS

#define ARGS nk_grouped_dual_gemm_args
FITS(ARGS)
const py_operator py_grouped_dual_gemm = {
    .name = "grouped_dual_gemm", .required = 5, .positional = 5, .size = sizeof(ARGS),
    .defaults = &(const ARGS){.out_dtype = NK_F16, .global_scale.value = 1, .rows_per_token = 1, .alpha.value = 1},
    .run = py_run_grouped_dual_gemm,
    .parameters = (const py_parameter[]){
        P(a, TENSOR, a, NULL), P(b, TENSOR, b, NULL), P(sfa, OPTIONAL, sfa, NULL), P(sfb, OPTIONAL, sfb, NULL),
        P(offsets, TENSOR, offsets, NULL), P(rows, OPTIONAL, rows, NULL), P(rows_per_token, INT, rows_per_token, NULL),
        P(alpha, SCALAR_OR_NONE, alpha, NULL), P(activation, WORD, activation, activation_words),
        P(scale_layout, LAYOUTS, sfa_layout, NULL), OWN(out), OWN(out_dtype), P(quantized, BOOL, quantized, NULL),
        OWN(global_scale), OWN(data_dtype), {0}
    }
};
#undef ARGS

#define ARGS nk_route_args
FITS(ARGS)
const py_operator py_route = {
    .name = "route", .required = 0, .positional = 3, .size = sizeof(ARGS),
    .defaults = &(const ARGS){.out_dtype = NK_F32, .n_group = 1, .topk_group = 1, .scaling_factor = 1,
    .alpha.value = 1}, .run = py_run_route,
    .parameters = (const py_parameter[]){
        P(x, OPTIONAL, x, NULL), P(w, OPTIONAL, w, NULL), OWN(k), P(logits, OPTIONAL, logits, NULL),
        P(score, WORD, score, score_words), P(correction_bias, OPTIONAL, correction_bias, NULL),
        P(n_group, INT, n_group, NULL), P(topk_group, INT, topk_group, NULL), OWN(renormalize),
        P(scaling_factor, FLOAT, scaling_factor, NULL), P(alpha, SCALAR, alpha, NULL), P(dense, BOOL, dense, NULL),
        P(permutation, BOOL, permutation, NULL), P(expert_map, OPTIONAL, expert_map, NULL), OWN(num_local_experts),
        P(return_logits, BOOL, return_logits, NULL), P(return_row_of, BOOL, return_row_of, NULL), OWN(out),
        OWN(out_dtype), {0}
    }
};
#undef ARGS

#define ARGS nk_sort_by_expert_args
FITS(ARGS)
const py_operator py_sort_by_expert = {
    .name = "sort_by_expert", .required = 2, .positional = 2, .size = sizeof(ARGS), .defaults = &(const ARGS){0},
    .run = py_run_sort_by_expert,
    .parameters = (const py_parameter[]){
        P(ids, TENSOR, ids, NULL), P(num_experts, INT, num_experts, NULL), P(expert_map, OPTIONAL, expert_map, NULL),
        OWN(num_local_experts), OWN(out), {0}
    }
};
#undef ARGS

#define ARGS nk_combine_args
FITS(ARGS)
const py_operator py_combine = {
    .name = "combine", .required = 3, .positional = 3, .size = sizeof(ARGS),
    .defaults = &(const ARGS){.out_dtype = NK_F16}, .run = py_run_one, .out = 4, .spec = spec_combine,
    .op = run_combine,
    .parameters = (const py_parameter[]){
        P(products, TENSOR, products, NULL), P(row_of, TENSOR, row_of, NULL), P(weights, TENSOR, weights, NULL),
        P(residual, OPTIONAL, residual, NULL), P(out, OUT, out, NULL), P(out_dtype, OUT_DTYPE, out_dtype, NULL), {0}
    }
};
#undef ARGS
