/* grouped_dual_gemm: checks its arguments and dispatches. */
#include "op_experts.h"
#include "op_gemm.h"

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

/* All but what gates and ups have each of their own. */
static nk_grouped_gemm_args stack_of(const nk_grouped_dual_gemm_args *args)
{
    return (nk_grouped_gemm_args){
        .all = {.a = args->a,
                .b = args->b,
                .sfa = args->sfa,
                .sfb = args->sfb,
                .sfa_layout = args->sfa_layout,
                .sfb_layout = args->sfb_layout,
                .alpha = args->alpha,
                .row_scale = args->row_scale,
                .bias = args->bias,
                .out_dtype = args->out_dtype,
                .out = args->out},
        .offsets = args->offsets,
        .rows = args->rows,
        .rows_per_token = args->rows_per_token,
        .expected_rows = args->expected_rows,
        .encoding = args->encoding,
    };
}

static nk_status check(const nk_grouped_dual_gemm_args *args, nk_grouped_dual_gemm_problem *problem, nk_tensor *specs)
{
    static const char b_shape[] = "[G, 2 N, K/2]";
    const nk_grouped_gemm_args stack = stack_of(args);
    nk_gemm_problem *gates = &problem->gates.all;
    nk_view a;
    *problem = (nk_grouped_dual_gemm_problem){.device = args->a->device, .activation = args->activation};
    NK_TRY(nk_check_activation(&args->activation));
    NK_TRY(nk_check_experts(&stack, NK_FP4, b_shape, &problem->gates, &a));
    NK_CHECK_AT(gates->n % 2 == 0, NK_VALUE_ERROR, args->b, "shape %s, expected %s: as many rows of gates as of ups",
                nk_shape_text(args->b).s, b_shape);
    NK_CHECK(args->gate_up == NK_GATE_UP_HALVES || args->sfb_layout == NK_SF_LINEAR, NK_VALUE_ERROR,
             "scale_layout: 'blocked' for sfb, expected 'linear' with gate_up='interleaved'");
    gates->n /= 2;
    problem->ups = split_rows_of_b(args->gate_up, gates);
    NK_TRY(check_alphas(args, problem->gates.groups, gates->n, &gates->alpha, &problem->alpha_ups));
    NK_TRY(check_biases(args, problem->gates.groups, gates->n, &gates->bias, &problem->bias_ups));
    return nk_spec_of_experts(&stack, b_shape, &a, &problem->gates, specs);
}

nk_status nk_grouped_dual_gemm_out(const nk_grouped_dual_gemm_args *args, nk_tensor *specs)
{
    nk_grouped_dual_gemm_problem problem;
    return check(args, &problem, specs);
}

nk_status nk_grouped_dual_gemm(const nk_grouped_dual_gemm_args *args, nk_exec *exec)
{
    const nk_grouped_gemm_args stack = stack_of(args);
    nk_grouped_dual_gemm_problem problem;
    nk_tensor specs[2];
    NK_TRY(check(args, &problem, specs));
    NK_TRY(nk_check_experts_outputs(&stack, specs, exec, &problem.gates));
    NK_DISPATCH(grouped_dual_gemm, &problem, exec, nk_numel(specs) == 0 || nk_are_experts_idle(&problem.gates));
}
