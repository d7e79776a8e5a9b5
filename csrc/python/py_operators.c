/* Says of each operator which arguments it has and how they are read.
 * Written by build_tools/generate.py from operators.py; do not edit. */
#include "py_operators.h"

#include "py_output.h"
#include "py_read.h"

PY_ADAPT(dequantize)
PY_ADAPT(relayout)
PY_ADAPT(gemv)
PY_ADAPT(gemm)
PY_ADAPT(dual_gemm)
PY_ADAPT(grouped_gemm)
PY_ADAPT(combine)
PY_ARGS_FIT(nk_quantize_args);
PY_ARGS_FIT(nk_relayout_args);
PY_ARGS_FIT(nk_gemm_args);
PY_ARGS_FIT(nk_dual_gemm_args);
PY_ARGS_FIT(nk_grouped_gemm_args);
PY_ARGS_FIT(nk_grouped_dual_gemm_args);
PY_ARGS_FIT(nk_sort_by_expert_args);
PY_ARGS_FIT(nk_combine_args);
PY_LAYOUTS_LIE(nk_gemm_args);
PY_LAYOUTS_LIE(nk_dual_gemm_args);
PY_LAYOUTS_LIE(nk_grouped_dual_gemm_args);

static const char *const activation_words[] = {
    [NK_SILU] = "silu", [NK_GELU] = "gelu", [NK_GELU_TANH] = "gelu_tanh", [NK_RELU] = "relu",
    [NK_IDENTITY] = "identity", NULL
};

static const char *const score_words[] = {
    [NK_TOPK_SOFTMAX] = "topk_softmax", [NK_SOFTMAX_TOPK] = "softmax_topk", [NK_SIGMOID] = "sigmoid", NULL
};

const py_operator py_quantize = {
    .name = "quantize", .required = 1, .positional = 1, .size = sizeof(nk_quantize_args), .run = py_run_quantize,
    .defaults = &(const nk_quantize_args){
        .global_scale.value = 1
    },
    .parameters =
        (const py_parameter[]){
            {"x", PY_TENSOR, offsetof(nk_quantize_args, x), NULL},
            {"up", PY_OPTIONAL, offsetof(nk_quantize_args, up), NULL}, {"global_scale", PY_OWN, 0, NULL},
            {"scale_layout", PY_LAYOUT, offsetof(nk_quantize_args, layout), NULL},
            {"offsets", PY_OPTIONAL, offsetof(nk_quantize_args, offsets), NULL}, {"out", PY_OWN, 0, NULL},
            {"data_dtype", PY_OWN, 0, NULL}, {0}
        },
};

const py_operator py_dequantize = {
    .name = "dequantize", .required = 1, .positional = 1, .size = sizeof(nk_dequantize_args), .run = py_run_dequantize,
    .out = 2, .spec = spec_dequantize, .op = run_dequantize,
    .defaults = &(const nk_dequantize_args){
        .global_scale.value = 1, .out_dtype = NK_F16
    },
    .parameters =
        (const py_parameter[]){
            {"q", PY_OWN, 0, NULL}, {"scale_layout", PY_LAYOUT, offsetof(nk_dequantize_args, layout), NULL},
            {"out", PY_OUT, offsetof(nk_dequantize_args, out), NULL},
            {"out_dtype", PY_OUT_DTYPE, offsetof(nk_dequantize_args, out_dtype), NULL}, {0}
        },
};

const py_operator py_to_blocked = {
    .name = "to_blocked", .required = 1, .positional = 1, .size = sizeof(nk_relayout_args), .run = py_run_one, .out = 1,
    .spec = spec_relayout, .op = run_relayout,
    .defaults = &(const nk_relayout_args){
        .to = NK_SF_BLOCKED
    },
    .parameters =
        (const py_parameter[]){
            {"scales", PY_TENSOR, offsetof(nk_relayout_args, in), NULL},
            {"out", PY_OUT, offsetof(nk_relayout_args, out), NULL}, {0}
        },
};

const py_operator py_from_blocked = {
    .name = "from_blocked", .required = 3, .positional = 3, .size = sizeof(nk_relayout_args), .run = py_run_one,
    .out = 3, .spec = spec_relayout, .op = run_relayout,
    .defaults = &(const nk_relayout_args){
        .to = NK_SF_LINEAR
    },
    .parameters =
        (const py_parameter[]){
            {"buffer", PY_TENSOR, offsetof(nk_relayout_args, in), NULL},
            {"rows", PY_INT, offsetof(nk_relayout_args, rows), NULL},
            {"cols", PY_INT, offsetof(nk_relayout_args, cols), NULL},
            {"out", PY_OUT, offsetof(nk_relayout_args, out), NULL}, {0}
        },
};

const py_operator py_gemv = {
    .name = "gemv", .required = 3, .positional = 4, .size = sizeof(nk_gemm_args), .run = py_run_one, .out = 6,
    .spec = spec_gemv, .op = run_gemv,
    .defaults = &(const nk_gemm_args){
        .alpha.value = 1, .out_dtype = NK_F16
    },
    .parameters =
        (const py_parameter[]){
            {"a", PY_TENSOR, offsetof(nk_gemm_args, a), NULL}, {"b", PY_TENSOR, offsetof(nk_gemm_args, b), NULL},
            {"sfa", PY_OPTIONAL, offsetof(nk_gemm_args, sfa), NULL},
            {"sfb", PY_OPTIONAL, offsetof(nk_gemm_args, sfb), NULL},
            {"alpha", PY_SCALAR, offsetof(nk_gemm_args, alpha), NULL},
            {"scale_layout", PY_LAYOUTS, offsetof(nk_gemm_args, sfa_layout), NULL},
            {"out", PY_OUT, offsetof(nk_gemm_args, out), NULL},
            {"out_dtype", PY_OUT_DTYPE, offsetof(nk_gemm_args, out_dtype), NULL}, {0}
        },
};

const py_operator py_gemm = {
    .name = "gemm", .required = 4, .positional = 4, .size = sizeof(nk_gemm_args), .run = py_run_one, .out = 7,
    .spec = spec_gemm, .op = run_gemm,
    .defaults = &(const nk_gemm_args){
        .alpha.value = 1, .out_dtype = NK_F16
    },
    .parameters =
        (const py_parameter[]){
            {"a", PY_TENSOR, offsetof(nk_gemm_args, a), NULL}, {"b", PY_TENSOR, offsetof(nk_gemm_args, b), NULL},
            {"sfa", PY_OPTIONAL, offsetof(nk_gemm_args, sfa), NULL},
            {"sfb", PY_OPTIONAL, offsetof(nk_gemm_args, sfb), NULL},
            {"alpha", PY_SCALAR, offsetof(nk_gemm_args, alpha), NULL},
            {"bias", PY_OPTIONAL, offsetof(nk_gemm_args, bias), NULL},
            {"scale_layout", PY_LAYOUTS, offsetof(nk_gemm_args, sfa_layout), NULL},
            {"out", PY_OUT, offsetof(nk_gemm_args, out), NULL},
            {"out_dtype", PY_OUT_DTYPE, offsetof(nk_gemm_args, out_dtype), NULL}, {0}
        },
};

const py_operator py_dual_gemm = {
    .name = "dual_gemm", .required = 6, .positional = 6, .size = sizeof(nk_dual_gemm_args), .run = py_run_one,
    .out = 10, .spec = spec_dual_gemm, .op = run_dual_gemm,
    .defaults = &(const nk_dual_gemm_args){
        .alpha1.value = 1, .alpha2.value = 1, .out_dtype = NK_F16
    },
    .parameters =
        (const py_parameter[]){
            {"a", PY_TENSOR, offsetof(nk_dual_gemm_args, a), NULL},
            {"b1", PY_TENSOR, offsetof(nk_dual_gemm_args, b1), NULL},
            {"b2", PY_TENSOR, offsetof(nk_dual_gemm_args, b2), NULL},
            {"sfa", PY_OPTIONAL, offsetof(nk_dual_gemm_args, sfa), NULL},
            {"sfb1", PY_OPTIONAL, offsetof(nk_dual_gemm_args, sfb1), NULL},
            {"sfb2", PY_OPTIONAL, offsetof(nk_dual_gemm_args, sfb2), NULL},
            {"alpha1", PY_SCALAR, offsetof(nk_dual_gemm_args, alpha1), NULL},
            {"alpha2", PY_SCALAR, offsetof(nk_dual_gemm_args, alpha2), NULL},
            {"activation", PY_WORD, offsetof(nk_dual_gemm_args, activation), activation_words},
            {"scale_layout", PY_LAYOUTS, offsetof(nk_dual_gemm_args, sfa_layout), NULL},
            {"out", PY_OUT, offsetof(nk_dual_gemm_args, out), NULL},
            {"out_dtype", PY_OUT_DTYPE, offsetof(nk_dual_gemm_args, out_dtype), NULL}, {0}
        },
};

const py_operator py_grouped_gemm = {
    .name = "grouped_gemm", .required = 2, .positional = 4, .size = sizeof(nk_grouped_gemm_args),
    .run = py_run_grouped_gemm, .out = 10, .spec = spec_grouped_gemm, .op = run_grouped_gemm,
    .defaults = &(const nk_grouped_gemm_args){
        .rows_per_token = 1, .all.alpha.value = 1, .all.out_dtype = NK_F16
    },
    .parameters =
        (const py_parameter[]){
            {"a", PY_TENSOR, offsetof(nk_grouped_gemm_args, all.a), NULL},
            {"b", PY_TENSOR, offsetof(nk_grouped_gemm_args, all.b), NULL},
            {"sfa", PY_OPTIONAL, offsetof(nk_grouped_gemm_args, all.sfa), NULL},
            {"sfb", PY_OPTIONAL, offsetof(nk_grouped_gemm_args, all.sfb), NULL},
            {"offsets", PY_OPTIONAL, offsetof(nk_grouped_gemm_args, offsets), NULL},
            {"rows", PY_OPTIONAL, offsetof(nk_grouped_gemm_args, rows), NULL},
            {"rows_per_token", PY_INT, offsetof(nk_grouped_gemm_args, rows_per_token), NULL},
            {"alpha", PY_SCALAR_OR_NONE, offsetof(nk_grouped_gemm_args, all.alpha), NULL},
            {"bias", PY_OPTIONAL, offsetof(nk_grouped_gemm_args, all.bias), NULL},
            {"scale_layout", PY_LAYOUTS, offsetof(nk_grouped_gemm_args, all.sfa_layout), NULL},
            {"out", PY_OUT, offsetof(nk_grouped_gemm_args, all.out), NULL},
            {"out_dtype", PY_OUT_DTYPE, offsetof(nk_grouped_gemm_args, all.out_dtype), NULL}, {0}
        },
};

const py_operator py_grouped_dual_gemm = {
    .name = "grouped_dual_gemm", .required = 5, .positional = 5, .size = sizeof(nk_grouped_dual_gemm_args),
    .run = py_run_grouped_dual_gemm,
    .defaults = &(const nk_grouped_dual_gemm_args){
        .out_dtype = NK_F16, .global_scale.value = 1, .rows_per_token = 1, .alpha.value = 1
    },
    .parameters =
        (const py_parameter[]){
            {"a", PY_TENSOR, offsetof(nk_grouped_dual_gemm_args, a), NULL},
            {"b", PY_TENSOR, offsetof(nk_grouped_dual_gemm_args, b), NULL},
            {"sfa", PY_OPTIONAL, offsetof(nk_grouped_dual_gemm_args, sfa), NULL},
            {"sfb", PY_OPTIONAL, offsetof(nk_grouped_dual_gemm_args, sfb), NULL},
            {"offsets", PY_TENSOR, offsetof(nk_grouped_dual_gemm_args, offsets), NULL},
            {"rows", PY_OPTIONAL, offsetof(nk_grouped_dual_gemm_args, rows), NULL},
            {"rows_per_token", PY_INT, offsetof(nk_grouped_dual_gemm_args, rows_per_token), NULL},
            {"alpha", PY_SCALAR_OR_NONE, offsetof(nk_grouped_dual_gemm_args, alpha), NULL},
            {"activation", PY_WORD, offsetof(nk_grouped_dual_gemm_args, activation), activation_words},
            {"scale_layout", PY_LAYOUTS, offsetof(nk_grouped_dual_gemm_args, sfa_layout), NULL},
            {"out", PY_OWN, 0, NULL}, {"out_dtype", PY_OWN, 0, NULL},
            {"quantized", PY_BOOL, offsetof(nk_grouped_dual_gemm_args, quantized), NULL},
            {"global_scale", PY_OWN, 0, NULL}, {"data_dtype", PY_OWN, 0, NULL}, {0}
        },
};

const py_operator py_route = {
    .name = "route", .required = 0, .positional = 3, .size = sizeof(nk_route_args), .run = py_run_route,
    .defaults = &(const nk_route_args){
        .out_dtype = NK_F32, .n_group = 1, .topk_group = 1, .scaling_factor = 1, .alpha.value = 1
    },
    .parameters =
        (const py_parameter[]){
            {"x", PY_OPTIONAL, offsetof(nk_route_args, x), NULL}, {"w", PY_OPTIONAL, offsetof(nk_route_args, w), NULL},
            {"k", PY_OWN, 0, NULL}, {"logits", PY_OPTIONAL, offsetof(nk_route_args, logits), NULL},
            {"score", PY_WORD, offsetof(nk_route_args, score), score_words},
            {"correction_bias", PY_OPTIONAL, offsetof(nk_route_args, correction_bias), NULL},
            {"n_group", PY_INT, offsetof(nk_route_args, n_group), NULL},
            {"topk_group", PY_INT, offsetof(nk_route_args, topk_group), NULL}, {"renormalize", PY_OWN, 0, NULL},
            {"scaling_factor", PY_FLOAT, offsetof(nk_route_args, scaling_factor), NULL},
            {"alpha", PY_SCALAR, offsetof(nk_route_args, alpha), NULL},
            {"dense", PY_BOOL, offsetof(nk_route_args, dense), NULL},
            {"permutation", PY_BOOL, offsetof(nk_route_args, permutation), NULL},
            {"expert_map", PY_OPTIONAL, offsetof(nk_route_args, expert_map), NULL},
            {"num_local_experts", PY_OWN, 0, NULL},
            {"return_logits", PY_BOOL, offsetof(nk_route_args, return_logits), NULL},
            {"return_row_of", PY_BOOL, offsetof(nk_route_args, return_row_of), NULL}, {"out", PY_OWN, 0, NULL},
            {"out_dtype", PY_OWN, 0, NULL}, {0}
        },
};

const py_operator py_sort_by_expert = {
    .name = "sort_by_expert", .required = 2, .positional = 2, .size = sizeof(nk_sort_by_expert_args),
    .run = py_run_sort_by_expert,
    .defaults = &(const nk_sort_by_expert_args){
        0
    },
    .parameters =
        (const py_parameter[]){
            {"ids", PY_TENSOR, offsetof(nk_sort_by_expert_args, ids), NULL},
            {"num_experts", PY_INT, offsetof(nk_sort_by_expert_args, num_experts), NULL},
            {"expert_map", PY_OPTIONAL, offsetof(nk_sort_by_expert_args, expert_map), NULL},
            {"num_local_experts", PY_OWN, 0, NULL}, {"out", PY_OWN, 0, NULL}, {0}
        },
};

const py_operator py_combine = {
    .name = "combine", .required = 3, .positional = 3, .size = sizeof(nk_combine_args), .run = py_run_one, .out = 4,
    .spec = spec_combine, .op = run_combine,
    .defaults = &(const nk_combine_args){
        .out_dtype = NK_F16
    },
    .parameters =
        (const py_parameter[]){
            {"products", PY_TENSOR, offsetof(nk_combine_args, products), NULL},
            {"row_of", PY_TENSOR, offsetof(nk_combine_args, row_of), NULL},
            {"weights", PY_TENSOR, offsetof(nk_combine_args, weights), NULL},
            {"residual", PY_OPTIONAL, offsetof(nk_combine_args, residual), NULL},
            {"out", PY_OUT, offsetof(nk_combine_args, out), NULL},
            {"out_dtype", PY_OUT_DTYPE, offsetof(nk_combine_args, out_dtype), NULL}, {0}
        },
};
