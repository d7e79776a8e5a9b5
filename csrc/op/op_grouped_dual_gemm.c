/* grouped_dual_gemm: checks its arguments and dispatches. */
#include "op_experts.h"
#include "op_gemm.h"
#include "op_quantize.h"

#include "backend.h"

#include <inttypes.h>

/* One element or [G] for both sums, [G, 2], or [G, 2 N]. */
static nk_status check_alphas(const nk_grouped_dual_gemm_args *args, int64_t experts, int64_t n, nk_alpha *gates,
                              nk_alpha *ups)
{
    const nk_scalar *alpha = &args->alpha;
    const nk_tensor *t = alpha->tensor, *first = args->a;
    const bool interleaved = args->gate_up == NK_GATE_UP_INTERLEAVED;
    *gates = *ups = (nk_alpha){.value = alpha->value};
    if (!t) return NK_OK;
    NK_TRY(nk_check_tensor(t, NK_DTYPE_BIT(NK_F32), first));
    const bool one = nk_numel(t) == 1, per_expert = t->ndim == 1 && t->shape[0] == experts;
    const bool pairs = t->ndim == 2 && t->shape[0] == experts && t->shape[1] == 2;
    const bool per_row = t->ndim == 2 && t->shape[0] == experts && t->shape[1] == 2 * n;
    NK_CHECK_AT(one || per_expert || pairs || per_row, NK_VALUE_ERROR, t,
                "shape %s, expected one element, (%" PRId64 ",), (%" PRId64 ", 2) or (%" PRId64 ", %" PRId64 ")",
                nk_shape_text(t).s, experts, experts, experts, 2 * n);
    gates->data = t->data;
    gates->group_stride = one ? 0 : t->stride[0];
    gates->stride = one || per_expert || pairs ? 0 : (interleaved ? 2 : 1) * t->stride[1];
    *ups = *gates;
    if (t->data && !one && !per_expert) ups->data += (pairs || interleaved ? 1 : n) * t->stride[1];
    return NK_OK;
}

static nk_status check_biases(const nk_grouped_dual_gemm_args *args, int64_t experts, int64_t n, nk_bias *gates,
                              nk_bias *ups)
{
    const nk_tensor *t = args->bias;
    const bool interleaved = args->gate_up == NK_GATE_UP_INTERLEAVED;
    *gates = *ups = (nk_bias){0};
    if (!t) return NK_OK;
    NK_TRY(nk_check_tensor(t, NK_FLOATS, args->a));
    NK_CHECK_AT(t->ndim == 2 && t->shape[0] == experts && t->shape[1] == 2 * n, NK_VALUE_ERROR, t,
                "shape %s, expected (%" PRId64 ", %" PRId64 ")", nk_shape_text(t).s, experts, 2 * n);
    const int64_t size = nk_dtype_size(t->dtype), stride = t->stride[1] * size;
    *gates = *ups = (nk_bias){t->data, t->dtype, (interleaved ? 2 : 1) * stride, t->stride[0] * size};
    if (t->data) ups->data += (interleaved ? 1 : n) * stride;
    return NK_OK;
}

/* gates->b has all 2 N rows of an expert, while gates->n is N: it keeps the rows of gates. Returns those of ups.
 * Blocked scale factors of ups behind gates that do not begin an atom begin in that of the last gates. */
static nk_operand split_rows_of_b(nk_gate_up order, nk_gemm_problem *gates)
{
    const int64_t atoms = gates->n / NK_SF_ATOM_ROWS;
    nk_operand ups = gates->b;
    if (order == NK_GATE_UP_INTERLEAVED) {
        if (ups.data) {
            ups.data += ups.row_stride;
            ups.sf += ups.sf_row_stride;
        }
        gates->b.row_stride = ups.row_stride *= 2;
        gates->b.sf_row_stride = ups.sf_row_stride *= 2;
    } else if (ups.data) { /* there are experts */
        ups.data += gates->n * ups.row_stride;
        ups.sf += ups.sf_layout == NK_SF_BLOCKED ? atoms * NK_SF_ATOM_ROWS * nk_sf_padded_cols(gates->k / NK_SF_VEC)
                                                 : gates->n * ups.sf_row_stride;
    }
    return ups;
}

/* What encoding wants of the rest. specs[0] are the codes, specs[1] the scale factors. */
static nk_status check_encoding(const nk_grouped_dual_gemm_args *args, const nk_view *a,
                                nk_grouped_dual_gemm_problem *problem, nk_tensor specs[2])
{
    const nk_gemm_problem *gates = &problem->gates.all;
    NK_CHECK_AT(gates->n % NK_SF_VEC == 0, NK_VALUE_ERROR, args->b,
                "shape %s, expected N to be a multiple of 16 with quantized=True, in [G, 2 N, K/2]",
                nk_shape_text(args->b).s);
    problem->encoded = (nk_encoded_output){.wanted = true};
    NK_TRY(nk_check_alpha(&args->global_scale, 1, args->a, &problem->encoded.global_scale));
    problem->encoded.global_scale.inverse = args->inverse;
    NK_TRY(nk_spec_matrix("codes", NK_E2M1X2, args->a, a, gates->m, gates->n / 2, &specs[0]));
    return nk_spec_matrix("scales", NK_E4M3, args->a, a, gates->m, gates->n / NK_SF_VEC, &specs[1]);
}

static nk_status check(const nk_grouped_dual_gemm_args *args, nk_grouped_dual_gemm_problem *problem, nk_tensor *specs)
{
    const nk_grouped_gemm_args stack = {
        .all = {.a = args->a,
                .b = args->b,
                .sfa = args->sfa,
                .sfb = args->sfb,
                .row_scale = args->row_scale,
                .sfa_layout = args->sfa_layout,
                .sfb_layout = args->sfb_layout},
        .offsets = args->offsets,
        .rows = args->rows,
        .rows_per_token = args->rows_per_token,
    };
    nk_gemm_problem *gates = &problem->gates.all;
    nk_view a;
    *problem = (nk_grouped_dual_gemm_problem){.device = args->a->device, .activation = args->activation};
    NK_TRY(nk_check_activation(&args->activation));
    NK_TRY(nk_check_experts(&stack, NK_FP4, "[G, 2 N, K/2]", &problem->gates, &a));
    NK_CHECK_AT(gates->n % 2 == 0, NK_VALUE_ERROR, args->b,
                "shape %s, expected [G, 2 N, K/2]: as many rows of gates as of ups", nk_shape_text(args->b).s);
    NK_CHECK(args->gate_up == NK_GATE_UP_HALVES || args->sfb_layout == NK_SF_LINEAR, NK_VALUE_ERROR,
             "scale_layout: 'blocked' for sfb, expected 'linear' with gate_up='interleaved'");
    gates->n /= 2;
    problem->ups = split_rows_of_b(args->gate_up, gates);
    NK_TRY(check_alphas(args, problem->gates.groups, gates->n, &gates->alpha, &problem->alpha_ups));
    NK_TRY(check_biases(args, problem->gates.groups, gates->n, &gates->bias, &problem->bias_ups));
    if (args->quantized) return check_encoding(args, &a, problem, specs);
    return nk_spec_matrix("out", nk_result_dtype(args->out_dtype, args->a), args->a, &a, gates->m, gates->n, specs);
}

nk_status nk_grouped_dual_gemm_out(const nk_grouped_dual_gemm_args *args, nk_tensor *specs)
{
    nk_grouped_dual_gemm_problem problem;
    return check(args, &problem, specs);
}

/* The outputs, of which `specs` speak, and what they point at. */
static nk_status check_outputs(const nk_grouped_dual_gemm_args *args, const nk_tensor specs[2], const nk_exec *exec,
                               nk_grouped_dual_gemm_problem *problem)
{
    nk_gemm_problem *gates = &problem->gates.all;
    nk_encoded_output *to = &problem->encoded;
    nk_view codes;
    int64_t batch_stride;
    if (!args->quantized) return nk_check_out_matrix(args->out, specs, exec, args->a, &gates->d);
    NK_TRY(nk_check_codes_out(args->codes, &specs[0], exec, args->a, &codes, &to->codes));
    to->codes_row_stride = codes.row_stride;
    return nk_check_scales_out(args->scales, &specs[1], NK_SF_LINEAR, &(nk_view){.rank = 2, .l = 1, .rows = gates->m},
                               gates->n, exec, args->a, &to->sf, &to->sf_row_stride, &batch_stride);
}

nk_status nk_grouped_dual_gemm(const nk_grouped_dual_gemm_args *args, nk_exec *exec)
{
    nk_grouped_dual_gemm_problem problem;
    nk_tensor specs[2];
    NK_TRY(check(args, &problem, specs));
    NK_TRY(check_outputs(args, specs, exec, &problem));
    const nk_tensor *all[] = {args->out,      args->codes, args->scales,       args->a,
                              args->b,        args->sfa,   args->sfb,          args->offsets,
                              args->rows,     args->bias,  args->alpha.tensor, args->global_scale.tensor,
                              args->row_scale};
    for (int i = 0; i < 3; i++) {
        if (all[i]) NK_TRY(nk_check_disjoint(all[i], all, sizeof all / sizeof all[0]));
    }
    NK_DISPATCH(grouped_dual_gemm, &problem, exec, nk_numel(specs) == 0 || nk_are_experts_idle(&problem.gates));
}
