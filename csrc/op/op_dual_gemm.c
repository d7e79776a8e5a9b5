/* dual_gemm: checks its arguments and dispatches. */
#include "op_gemm.h"

#include "backend.h"

#include <math.h>

nk_status nk_check_activation(const nk_activation *a)
{
    const float not_given = 1.702f; /* what callers' defaults are */
    const bool is_swiglu_oai = a->kind == NK_SWIGLU_OAI, has_limit = is_swiglu_oai || a->kind == NK_SILU;
    NK_CHECK(a->limit > 0, NK_VALUE_ERROR, "limit: %g, expected None or a number above 0", (double)a->limit);
    NK_CHECK(has_limit || a->limit == INFINITY, NK_VALUE_ERROR,
             "limit: %g, expected None: only the activations 'silu' and 'swiglu_oai' have one", (double)a->limit);
    NK_CHECK(a->scale > 0 && a->scale < INFINITY, NK_VALUE_ERROR,
             "activation_scale: %g, expected a finite number above 0", (double)a->scale);
    NK_CHECK(is_swiglu_oai || a->scale == not_given, NK_VALUE_ERROR,
             "activation_scale: %.9g, expected %g: only the activation 'swiglu_oai' has one", (double)a->scale,
             (double)not_given);
    return NK_OK;
}

static nk_status check(const nk_dual_gemm_args *args, nk_dual_gemm_problem *problem, nk_tensor *spec)
{
    nk_view a, b1, b2;
    int64_t k1, k2;
    *problem = (nk_dual_gemm_problem){.device = args->a->device, .activation = args->activation};
    NK_TRY(nk_check_activation(&args->activation));
    NK_TRY(nk_check_operand(args->a, args->sfa, "sfa", args->sfa_layout, NK_FP4 | NK_HALVES, args->a, &problem->a, &a,
                            &problem->k));
    NK_TRY(nk_check_k_innermost(args->a, &problem->a));
    NK_TRY(nk_check_weights(args->b1, args->sfb1, "sfb1", args->sfb_layout, NK_FP4, args->a, &a, args->a, &problem->b1,
                            &b1, &k1));
    NK_TRY(nk_check_weights(args->b2, args->sfb2, "sfb2", args->sfb_layout, NK_FP4, args->a, &a, args->a, &problem->b2,
                            &b2, &k2));
    NK_TRY(nk_check_same_k(args->b1, k1, args->a, problem->k));
    NK_TRY(nk_check_same_k(args->b2, k2, args->a, problem->k));
    NK_CHECK_AT(b2.rank == b1.rank && b2.rows == b1.rows, NK_VALUE_ERROR, args->b2,
                "shape %s, expected the shape of b1, %s", nk_shape_text(args->b2).s, nk_shape_text(args->b1).s);
    problem->l = a.l;
    problem->m = a.rows;
    problem->n = b1.rows;
    NK_TRY(nk_check_alpha(&args->alpha1, problem->n, args->a, &problem->alpha1));
    NK_TRY(nk_check_alpha(&args->alpha2, problem->n, args->a, &problem->alpha2));
    NK_TRY(nk_check_row_scale(args->row_scale, args->a, &a, args->a, &problem->row_scale));
    NK_TRY(nk_check_bias(args->bias1, problem->n, args->a, &problem->bias1));
    NK_TRY(nk_check_bias(args->bias2, problem->n, args->a, &problem->bias2));
    return nk_spec_matrix("out", nk_result_dtype(args->out_dtype, args->a), args->a, &a, problem->m, problem->n, spec);
}

nk_status nk_dual_gemm_out(const nk_dual_gemm_args *args, nk_tensor *spec)
{
    nk_dual_gemm_problem problem;
    return check(args, &problem, spec);
}

nk_status nk_dual_gemm(const nk_dual_gemm_args *args, nk_exec *exec)
{
    nk_dual_gemm_problem problem;
    nk_tensor spec;
    NK_TRY(check(args, &problem, &spec));
    NK_TRY(nk_check_out_matrix(args->out, &spec, exec, args->a, &problem.d));
    if (args->out) {
        const nk_tensor *inputs[] = {args->a,
                                     args->b1,
                                     args->b2,
                                     args->sfa,
                                     args->sfb1,
                                     args->sfb2,
                                     args->alpha1.tensor,
                                     args->alpha2.tensor,
                                     args->bias1,
                                     args->bias2,
                                     args->row_scale};
        NK_TRY(nk_check_disjoint(args->out, inputs, sizeof inputs / sizeof inputs[0]));
    }
    if (nk_is_shared(&problem.b1) && nk_is_shared(&problem.b2))
        nk_join_batches(&problem.l, &problem.m, problem.n, problem.k, &problem.a, &problem.d, &problem.row_scale);
    NK_DISPATCH(dual_gemm, &problem, exec, nk_numel(&spec) == 0);
}
