/* grouped_dual_gemm: checks its arguments and dispatches. */
#include "op_experts.h"

#include "backend.h"

#include <inttypes.h>

/* One element or [G] for both sums, [G, 2], or [G, 2 N]. */
static nk_status check_alphas(const nk_scalar *alpha, int64_t experts, int64_t n, const nk_tensor *first,
                              nk_alpha *gates, nk_alpha *ups)
{
    const nk_tensor *t = alpha->tensor;
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
    gates->stride = one || per_expert || pairs ? 0 : t->stride[1];
    *ups = *gates;
    if (t->data && !one && !per_expert) ups->data += (pairs ? 1 : n) * t->stride[1];
    return NK_OK;
}

static nk_status check(const nk_grouped_dual_gemm_args *args, nk_grouped_dual_gemm_problem *problem, nk_tensor *spec)
{
    const nk_grouped_gemm_args stack = {
        .all = {.a = args->a,
                .b = args->b,
                .sfa = args->sfa,
                .sfb = args->sfb,
                .sfa_layout = args->sfa_layout,
                .sfb_layout = args->sfb_layout},
        .offsets = args->offsets,
        .rows = args->rows,
        .rows_per_token = args->rows_per_token,
    };
    nk_gemm_problem *gates = &problem->gates.all;
    nk_view a;
    problem->device = args->a->device;
    problem->activation = args->activation;
    NK_TRY(nk_check_experts(&stack, NK_FP4, "[G, 2 N, K/2]", &problem->gates, &a));
    NK_CHECK_AT(gates->n % 2 == 0, NK_VALUE_ERROR, args->b,
                "shape %s, expected [G, 2 N, K/2]: the gates of each expert, then as many ups",
                nk_shape_text(args->b).s);
    gates->n /= 2;
    NK_TRY(check_alphas(&args->alpha, problem->gates.groups, gates->n, args->a, &gates->alpha, &problem->alpha_ups));
    return nk_spec_matrix("out", args->out_dtype, args->a, &a, gates->m, gates->n, spec);
}

nk_status nk_grouped_dual_gemm_out(const nk_grouped_dual_gemm_args *args, nk_tensor *spec)
{
    nk_grouped_dual_gemm_problem problem;
    return check(args, &problem, spec);
}

nk_status nk_grouped_dual_gemm(const nk_grouped_dual_gemm_args *args, nk_exec *exec)
{
    nk_grouped_dual_gemm_problem problem;
    nk_tensor spec;
    NK_TRY(check(args, &problem, &spec));
    NK_TRY(nk_check_out_matrix(args->out, &spec, exec, args->a, &problem.gates.all.d));
    if (args->out) {
        const nk_tensor *inputs[] = {args->a,       args->b,    args->sfa,         args->sfb,
                                     args->offsets, args->rows, args->alpha.tensor};
        NK_TRY(nk_check_disjoint(args->out, inputs, sizeof inputs / sizeof inputs[0]));
    }
    NK_DISPATCH(grouped_dual_gemm, &problem, exec, nk_numel(&spec) == 0 || nk_are_experts_idle(&problem.gates));
}
