/* gemm: checks its arguments and dispatches. */
#include "op_gemm.h"

#include "backend.h"

nk_status nk_gemm_inputs(const nk_gemm_args *args, unsigned a_dtypes, unsigned b_dtypes, const nk_tensor *first,
                         nk_gemm_problem *problem, nk_view *like)
{
    nk_view b;
    int64_t b_k;
    problem->device = first->device;
    NK_TRY(
        nk_check_operand(args->a, args->sfa, "sfa", args->sfa_layout, a_dtypes, first, &problem->a, like, &problem->k));
    NK_TRY(nk_check_weights(args->b, args->sfb, "sfb", args->sfb_layout, b_dtypes, first, like, args->a, &problem->b,
                            &b, &b_k));
    NK_TRY(nk_check_same_k(args->b, b_k, args->a, problem->k));
    problem->l = like->l;
    problem->m = like->rows;
    problem->n = b.rows;
    bool a_fp4 = problem->a.dtype == NK_E2M1X2, b_fp4 = problem->b.dtype == NK_E2M1X2;
    NK_CHECK_AT(!a_fp4 || b_fp4, NK_TYPE_ERROR, args->b, "dtype %s, expected NVFP4 like %s",
                nk_dtype_name(args->b->dtype), args->a->name);
    NK_CHECK_AT(b_fp4 || problem->b.dtype == problem->a.dtype, NK_TYPE_ERROR, args->b, "dtype %s, expected %s like %s",
                nk_dtype_name(args->b->dtype), nk_dtype_name(args->a->dtype), args->a->name);
    return nk_check_row_scale(args->row_scale, args->a, like, first, &problem->row_scale);
}

nk_status nk_gemm_output(const nk_gemm_args *args, const nk_tensor *spec, const nk_exec *exec, const nk_tensor *first,
                         nk_gemm_problem *problem)
{
    NK_TRY(nk_check_out_matrix(args->out, spec, exec, first, &problem->d));
    if (!args->out) return NK_OK;
    const nk_tensor *inputs[] = {args->a,    args->b,        args->sfa, args->sfb, args->alpha.tensor,
                                 args->bias, args->row_scale};
    return nk_check_disjoint(args->out, inputs, sizeof inputs / sizeof inputs[0]);
}

bool nk_is_shared(const nk_operand *weights) { return weights->batch_stride == 0 && weights->sf_batch_stride == 0; }

/* One number for the stride from row to row, also from batch to batch; false where there is none. */
static bool joined_stride(int64_t rows, int64_t row_stride, int64_t batch_stride, int64_t *stride)
{
    int64_t all;
    *stride = rows == 1 ? batch_stride : row_stride;
    return rows == 1 || (!__builtin_mul_overflow(rows, row_stride, &all) && all == batch_stride);
}

/* Atoms hold 128 rows: batches whose last atom is full follow each other as rows do. */
static bool scales_join(const nk_operand *a, int64_t m, int64_t k, int64_t *row_stride)
{
    if (!a->sf) return true;
    if (a->sf_layout == NK_SF_LINEAR) return joined_stride(m, a->sf_row_stride, a->sf_batch_stride, row_stride);
    return m % NK_SF_ATOM_ROWS == 0 && a->sf_batch_stride == m * nk_sf_padded_cols(k / NK_SF_VEC);
}

void nk_join_batches(int64_t *l, int64_t *m, int64_t n, int64_t k, nk_operand *a, nk_output *d, nk_row_scale *row_scale)
{
    int64_t rows, a_stride, d_stride, sf_stride = a->sf_row_stride, size = nk_dtype_size(d->dtype);
    int64_t scale_stride;
    if (*l <= 1 || *m < 1 || __builtin_mul_overflow(*l, *m, &rows)) return;
    bool joins = joined_stride(*m, a->row_stride, a->batch_stride, &a_stride) &&
                 joined_stride(*m, d->row_stride, d->batch_stride, &d_stride) && scales_join(a, *m, k, &sf_stride) &&
                 joined_stride(*m, row_scale->stride, row_scale->batch_stride, &scale_stride);
    if (!joins || (n > 1 && d->col_stride != size && d_stride != size)) return;
    *l = 1;
    *m = rows;
    a->row_stride = a_stride;
    a->sf_row_stride = sf_stride;
    d->row_stride = d_stride;
    row_scale->stride = scale_stride;
}

/* 16-bit tokens must be contiguous along K. (Only the 16-bit b of grouped_gemm may be contiguous along N instead.) */
static nk_status check(const nk_gemm_args *args, nk_gemm_problem *problem, nk_tensor *spec)
{
    nk_view like;
    NK_TRY(nk_gemm_inputs(args, NK_FP4 | NK_HALVES, NK_FP4, args->a, problem, &like));
    NK_TRY(nk_check_k_innermost(args->a, &problem->a));
    NK_TRY(nk_check_alpha(&args->alpha, problem->n, args->a, &problem->alpha));
    NK_TRY(nk_check_bias(args->bias, problem->n, args->a, &problem->bias));
    return nk_spec_matrix("out", nk_result_dtype(args->out_dtype, args->a), args->a, &like, problem->m, problem->n,
                          spec);
}

nk_status nk_gemm_out(const nk_gemm_args *args, nk_tensor *spec)
{
    nk_gemm_problem problem;
    return check(args, &problem, spec);
}

nk_status nk_gemm(const nk_gemm_args *args, nk_exec *exec)
{
    nk_gemm_problem problem;
    nk_tensor spec;
    NK_TRY(check(args, &problem, &spec));
    NK_TRY(nk_gemm_output(args, &spec, exec, args->a, &problem));
    if (nk_is_shared(&problem.b))
        nk_join_batches(&problem.l, &problem.m, problem.n, problem.k, &problem.a, &problem.d, &problem.row_scale);
    NK_DISPATCH(gemm, &problem, exec, nk_numel(&spec) == 0);
}
