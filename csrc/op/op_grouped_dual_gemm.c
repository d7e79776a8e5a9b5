/* grouped_dual_gemm: checks its arguments and dispatches. */
#include "op_experts.h"
#include "op_gemm.h"
#include "op_quantize.h"

#include "backend.h"

#include <inttypes.h>
#include <math.h>

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

/* What encoding wants of the rest. specs[0] are the codes, specs[1] the scale factors. */
static nk_status check_encoding(const nk_grouped_dual_gemm_args *args, const nk_view *a,
                                nk_grouped_dual_gemm_problem *problem, nk_tensor specs[2])
{
    static const char *const words[] = {"silu", "gelu", "gelu_tanh", "relu", "relu2", "identity", "swiglu_oai"};
    const nk_gemm_problem *gates = &problem->gates.all;
    NK_CHECK(args->activation.kind == NK_SILU, NK_VALUE_ERROR, "activation: '%s', expected 'silu' with quantized=True",
             words[args->activation.kind]);
    NK_CHECK(args->activation.limit == INFINITY, NK_VALUE_ERROR, "limit: %g, expected None with quantized=True",
             (double)args->activation.limit);
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
                "shape %s, expected [G, 2 N, K/2]: the gates of each expert, then as many ups",
                nk_shape_text(args->b).s);
    gates->n /= 2;
    NK_TRY(check_alphas(&args->alpha, problem->gates.groups, gates->n, args->a, &gates->alpha, &problem->alpha_ups));
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
    const nk_tensor *all[] = {args->out,          args->codes, args->scales,  args->a,
                              args->b,            args->sfa,   args->sfb,     args->offsets,
                              args->rows,         args->alpha.tensor, args->global_scale.tensor};
    for (int i = 0; i < 3; i++) {
        if (all[i]) NK_TRY(nk_check_disjoint(all[i], all, sizeof all / sizeof all[0]));
    }
    NK_DISPATCH(grouped_dual_gemm, &problem, exec, nk_numel(specs) == 0 || nk_are_experts_idle(&problem.gates));
}
