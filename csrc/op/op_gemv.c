/* gemv: checks its arguments and dispatches. */
#include "op_check.h"

#include "backend.h"

/* The problem is the gemm of one token. The vector becomes its A and the matrix its B, so alpha per row of the matrix
 * is alpha[n]. */
static nk_status check(const nk_gemm_args *args, nk_gemv_problem *problem, nk_tensor *spec)
{
    nk_view matrix, vector;
    int64_t k;
    problem->device = args->a->device;
    problem->bias = (nk_bias){0};
    NK_CHECK_AT(args->a->ndim == 2 || args->a->ndim == 3, NK_VALUE_ERROR, args->a,
                "shape %s, expected [M, K/2] with or without a batch L", nk_shape_text(args->a).s);
    NK_CHECK_AT(args->b->ndim == args->a->ndim && (args->a->ndim == 2 || args->b->shape[0] == args->a->shape[0]),
                NK_VALUE_ERROR, args->b, "shape %s, expected one row with the batch of a, which has shape %s",
                nk_shape_text(args->b).s, nk_shape_text(args->a).s);
    NK_TRY(nk_check_operand(args->a, args->sfa, "sfa", args->sfa_layout, NK_FP4, args->a, &problem->b, &matrix,
                            &problem->k));
    NK_TRY(nk_check_operand(args->b, args->sfb, "sfb", args->sfb_layout, NK_FP4 | NK_HALVES, args->a, &problem->a,
                            &vector, &k));
    NK_CHECK_AT(vector.rows == 1, NK_VALUE_ERROR, args->b, "shape %s, expected one row", nk_shape_text(args->b).s);
    NK_TRY(nk_check_same_k(args->b, k, args->a, problem->k));
    NK_TRY(nk_check_k_innermost(args->b, &problem->a));
    problem->l = matrix.l;
    problem->m = 1;
    problem->n = matrix.rows;
    NK_TRY(nk_check_alpha(&args->alpha, problem->n, args->a, &problem->alpha));
    NK_TRY(nk_check_row_scale(args->row_scale, args->b, &vector, args->a, &problem->row_scale));
    return nk_spec_matrix("out", nk_result_dtype(args->out_dtype, args->b), args->a, &matrix, problem->n, 1, spec);
}

nk_status nk_gemv_out(const nk_gemm_args *args, nk_tensor *spec)
{
    nk_gemv_problem problem;
    return check(args, &problem, spec);
}

nk_status nk_gemv(const nk_gemm_args *args, nk_exec *exec)
{
    nk_gemv_problem problem;
    nk_tensor spec;
    nk_output column;
    NK_TRY(check(args, &problem, &spec));
    NK_TRY(nk_check_out_matrix(args->out, &spec, exec, args->a, &column));
    if (args->out) {
        const nk_tensor *inputs[] = {args->a, args->b, args->sfa, args->sfb, args->alpha.tensor, args->row_scale};
        NK_TRY(nk_check_disjoint(args->out, inputs, sizeof inputs / sizeof inputs[0]));
    }
    problem.d = column; /* [L, M, 1] is the gemm's [L, 1, N] */
    problem.d.row_stride = column.col_stride;
    problem.d.col_stride = column.row_stride;
    NK_DISPATCH(gemv, &problem, exec, nk_numel(&spec) == 0);
}
