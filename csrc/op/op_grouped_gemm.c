/* grouped_gemm: checks the arguments of both forms and dispatches. */
#include "op_experts.h"

#include "backend.h"

#include <inttypes.h>
#include <math.h>

/* The checked problems of all groups come first, then what the search for overlaps wants. */
size_t nk_gemm_problem_size(void) { return sizeof(nk_gemm_problem) + nk_disjoint_bytes(); }

/* Identity is none, unless it is encoded. */
static nk_status check_activation(const nk_grouped_gemm_args *args, nk_grouped_gemm_problem *problem)
{
    const nk_activation_kind kind = args->activation;
    NK_CHECK(kind != NK_SWIGLU_OAI, NK_VALUE_ERROR, "%s",
             "activation: 'swiglu_oai', expected 'silu', 'gelu', 'gelu_tanh', 'relu', 'relu2' or 'identity': "
             "there is no gate");
    problem->is_activated = kind != NK_IDENTITY || args->encoding.wanted;
    problem->activation = (nk_activation){.kind = kind, .limit = INFINITY};
    return NK_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* List form: every group is a gemm of its own                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

static nk_status check_group(const nk_gemm_args *args, const nk_tensor *first, nk_gemm_problem *problem,
                             nk_tensor *spec)
{
    nk_view like;
    NK_CHECK_AT(args->a->ndim == 2, NK_VALUE_ERROR, args->a, "shape %s, expected a matrix for a group",
                nk_shape_text(args->a).s);
    NK_TRY(nk_gemm_inputs(args, NK_FP4 | NK_HALVES, NK_FP4 | NK_HALVES, first, problem, &like));
    NK_TRY(nk_check_k_innermost(args->a, &problem->a));
    NK_TRY(nk_check_16_bit_strides(args->b, &problem->b));
    NK_TRY(nk_check_alpha(&args->alpha, problem->n, first, &problem->alpha));
    NK_TRY(nk_check_bias(args->bias, problem->n, first, &problem->bias));
    NK_TRY(
        nk_spec_matrix("out", nk_result_dtype(args->out_dtype, args->a), first, &like, problem->m, problem->n, spec));
    spec->index = args->a->index;
    return NK_OK;
}

static nk_status run_list(const nk_grouped_gemm_args *args, nk_exec *exec)
{
    nk_grouped_gemm_problem problem = {.groups = args->groups, .list = args->problems};
    bool empty = true;
    NK_CHECK(!args->encoding.wanted, NK_VALUE_ERROR, "quantized: True, expected False where a is a list");
    NK_TRY(check_activation(args, &problem));
    for (int64_t g = 0; g < args->groups; g++) {
        const nk_tensor *first = args->list[0].a;
        nk_tensor spec;
        problem.device = first->device;
        NK_TRY(check_group(&args->list[g], first, &args->problems[g], &spec));
        NK_TRY(nk_check_out_matrix(args->list[g].out, &spec, exec, first, &args->problems[g].d));
        empty = empty && nk_numel(&spec) == 0;
    }
    NK_TRY(nk_check_disjoint_groups(args->list, args->groups, args->problems + args->groups, exec));
    NK_DISPATCH(grouped_gemm, &problem, exec, empty);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Contiguous form: experts are ranges of rows */
/* ---------------------------------------------------------------------------------------------------------------- */

/* alpha has one element, or is [G] or [G, N]; bias is [G, N]. */
static nk_status check_contiguous(const nk_grouped_gemm_args *args, nk_grouped_gemm_problem *problem, nk_tensor *specs)
{
    const nk_gemm_args *all = &args->all;
    const nk_tensor *first = all->a, *t = all->alpha.tensor;
    nk_gemm_problem *p = &problem->all;
    static const char b_shape[] = "[G, N, K/2]";
    nk_view a;
    NK_TRY(nk_check_experts(args, NK_FP4 | NK_HALVES, b_shape, problem, &a));
    NK_TRY(check_activation(args, problem));
    const int64_t experts = problem->groups;
    p->alpha.value = all->alpha.value;
    if (t) {
        NK_TRY(nk_check_tensor(t, NK_DTYPE_BIT(NK_F32), first));
        bool one = nk_numel(t) == 1, per_expert = t->ndim == 1 && t->shape[0] == experts;
        NK_CHECK_AT(one || per_expert || (t->ndim == 2 && t->shape[0] == experts && t->shape[1] == p->n),
                    NK_VALUE_ERROR, t, "shape %s, expected one element, (%" PRId64 ",) or (%" PRId64 ", %" PRId64 ")",
                    nk_shape_text(t).s, experts, experts, p->n);
        p->alpha.data = t->data;
        p->alpha.group_stride = one ? 0 : t->stride[0];
        p->alpha.stride = one || per_expert ? 0 : t->stride[1];
    }
    t = all->bias;
    if (t) {
        NK_TRY(nk_check_tensor(t, NK_FLOATS, first));
        NK_CHECK_AT(t->ndim == 2 && t->shape[0] == experts && t->shape[1] == p->n, NK_VALUE_ERROR, t,
                    "shape %s, expected (%" PRId64 ", %" PRId64 ")", nk_shape_text(t).s, experts, p->n);
        int64_t size = nk_dtype_size(t->dtype);
        p->bias = (nk_bias){t->data, t->dtype, t->stride[1] * size, t->stride[0] * size};
    }
    return nk_spec_of_experts(args, b_shape, &a, problem, specs);
}

static nk_status run_contiguous(const nk_grouped_gemm_args *args, nk_exec *exec)
{
    nk_grouped_gemm_problem problem;
    nk_tensor specs[2];
    NK_TRY(check_contiguous(args, &problem, specs));
    NK_TRY(nk_check_experts_outputs(args, specs, exec, &problem));
    NK_DISPATCH(grouped_gemm, &problem, exec, nk_numel(specs) == 0 || nk_are_experts_idle(&problem));
}

/* ---------------------------------------------------------------------------------------------------------------- */

nk_status nk_grouped_gemm_out(const nk_grouped_gemm_args *args, nk_tensor *specs)
{
    if (!args->list) {
        nk_grouped_gemm_problem problem;
        return check_contiguous(args, &problem, specs);
    }
    for (int64_t g = 0; g < args->groups; g++) {
        NK_TRY(check_group(&args->list[g], args->list[0].a, &args->problems[g], &specs[g]));
    }
    return NK_OK;
}

nk_status nk_grouped_gemm(const nk_grouped_gemm_args *args, nk_exec *exec)
{
    return args->list ? run_list(args, exec) : run_contiguous(args, exec);
}
