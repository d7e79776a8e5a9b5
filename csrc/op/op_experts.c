/* The checks of GEMMs whose rows `offsets` divides among experts. */
#include "op_experts.h"

#include "op_quantize.h"

#include <inttypes.h>

nk_status nk_check_16_bit_strides(const nk_tensor *b, const nk_operand *operand)
{
    const int64_t size = nk_dtype_size(b->dtype), *shape = &b->shape[b->ndim - 2];
    NK_CHECK_AT(shape[1] <= 1 || shape[0] <= 1 || operand->k_stride == size || operand->row_stride == size,
                NK_VALUE_ERROR, b, "strides of %" PRId64 " and %" PRId64 " elements, expected K or N to be contiguous",
                operand->row_stride / size, operand->k_stride / size);
    return NK_OK;
}

static int64_t clamp(int64_t x, int64_t most) { return x < 0 ? 0 : x > most ? most : x; }

/* Every row of an expert names a token; the others, behind the last expert, may hold anything. Of the offsets, which
 * another thread may have written since they were checked, each is read once. */
static NK_COLD nk_status check_tokens(const nk_tensor *rows, const nk_tensor *offsets, const nk_token_rows *checked)
{
    const int32_t *offset = offsets->data, *row = rows->data;
    const int64_t first = __atomic_load_n(&offset[0], __ATOMIC_RELAXED), all = rows->shape[0];
    const int64_t last = __atomic_load_n(&offset[offsets->shape[0] - 1], __ATOMIC_RELAXED);
    for (int64_t p = clamp(first, all); p < clamp(last, all); p++) {
        const int32_t value = __atomic_load_n(&row[p], __ATOMIC_RELAXED);
        NK_CHECK_AT(value >= 0 && value / checked->per_token < checked->tokens, NK_VALUE_ERROR, rows,
                    "row %" PRId64 " is %" PRId32 ", expected 0 or more, and less than %" PRId64 " x %" PRId32
                    ": the tokens of a, and rows_per_token",
                    p, value, checked->tokens, checked->per_token);
    }
    return NK_OK;
}

/* `rows` and rows_per_token, all but the values. */
static nk_status check_rows(const nk_grouped_gemm_args *args, nk_grouped_gemm_problem *problem)
{
    const nk_tensor *rows = args->rows;
    const int64_t per_token = args->rows_per_token;
    NK_CHECK(per_token >= 1 && per_token <= (rows ? INT32_MAX : 1), NK_VALUE_ERROR,
             "rows_per_token: %" PRId64 ", expected %s", per_token, rows ? "1 to 2147483647" : "1 where rows is None");
    if (!rows) return NK_OK;
    NK_TRY(nk_check_tensor(rows, NK_DTYPE_BIT(NK_I32), args->all.a));
    NK_CHECK_AT(rows->ndim == 1, NK_VALUE_ERROR, rows, "shape %s, expected [P]", nk_shape_text(rows).s);
    NK_CHECK_AT(rows->shape[0] <= 1 || rows->stride[0] == 1, NK_VALUE_ERROR, rows,
                "stride %" PRId64 ", expected 1, as after .contiguous()", rows->stride[0]);
    problem->rows = (nk_token_rows){rows->data, (int32_t)per_token, problem->all.m};
    problem->all.m = rows->shape[0];
    return NK_OK;
}

static nk_status check_expected_rows(const nk_grouped_gemm_args *args, nk_grouped_gemm_problem *problem)
{
    const int64_t all = problem->all.m, expected = args->expected_rows;
    NK_CHECK(expected <= all, NK_VALUE_ERROR,
             "expected_rows: %" PRId64 ", expected 0 to %" PRId64 ": the rows that offsets divide", expected, all);
    problem->expected_rows = expected < 0 ? all : expected;
    return NK_OK;
}

/* The offsets, and what depends on them: the tokens that rows name, the size of a blocked sfa. */
static nk_status check_offsets(const nk_grouped_gemm_args *args, nk_grouped_gemm_problem *problem)
{
    const nk_gemm_args *all = &args->all;
    const nk_gemm_problem *p = &problem->all;
    const nk_tensor *first = all->a, *offsets = args->offsets;
    int64_t atoms, bytes;
    NK_CHECK_AT(offsets->ndim == 1 && offsets->shape[0] == problem->groups + 1, NK_VALUE_ERROR, offsets,
                "shape %s, expected (%" PRId64 ",): one more than the experts of b", nk_shape_text(offsets).s,
                problem->groups + 1);
    NK_TRY(nk_check_offsets(offsets, p->m, first, &atoms));
    problem->offsets = offsets->data;
    if (args->rows) return first->device.type == NK_CPU ? check_tokens(args->rows, offsets, &problem->rows) : NK_OK;
    if (!p->a.sf || p->a.sf_layout != NK_SF_BLOCKED) return NK_OK;
    problem->a_sf_bytes = nk_numel(all->sfa);
    NK_TRY(nk_blocked_bytes(all->sfa, atoms * NK_SF_ATOM_ROWS, p->k, &bytes));
    NK_CHECK_AT(problem->a_sf_bytes >= bytes, NK_VALUE_ERROR, all->sfa,
                "%" PRId64 " bytes, expected at least %" PRId64 ": each expert's rows start at an atom of 128",
                problem->a_sf_bytes, bytes);
    return NK_OK;
}

nk_status nk_check_experts(const nk_grouped_gemm_args *args, unsigned b_dtypes, const char *b_shape,
                           nk_grouped_gemm_problem *problem, nk_view *like)
{
    const nk_gemm_args *all = &args->all;
    const nk_tensor *first = all->a;
    nk_gemm_problem *p = &problem->all;
    nk_view b;
    int64_t k;
    *problem = (nk_grouped_gemm_problem){.device = first->device, .all.device = first->device, .all.l = 1};
    NK_CHECK_AT(first->ndim == 2, NK_VALUE_ERROR, first, "shape %s, expected [sum M, K/2]", nk_shape_text(first).s);
    NK_CHECK_AT(all->b->ndim == 3, NK_VALUE_ERROR, all->b, "shape %s, expected %s", nk_shape_text(all->b).s, b_shape);
    NK_TRY(nk_check_operand(first, all->sfa, "sfa", all->sfa_layout, NK_FP4 | NK_HALVES, first, &p->a, like, &p->k));
    NK_TRY(nk_check_k_innermost(first, &p->a));
    NK_TRY(nk_check_operand(all->b, all->sfb, "sfb", all->sfb_layout, b_dtypes, first, &p->b, &b, &k));
    NK_TRY(nk_check_16_bit_strides(all->b, &p->b));
    NK_TRY(nk_check_same_k(all->b, k, first, p->k));
    NK_CHECK_AT(p->b.dtype == NK_E2M1X2 || p->b.dtype == p->a.dtype, NK_TYPE_ERROR, all->b,
                "dtype %s, expected %s like a", nk_dtype_name(all->b->dtype), nk_dtype_name(first->dtype));
    problem->groups = b.l;
    p->m = like->rows;
    p->n = b.rows;
    NK_TRY(nk_check_row_scale(all->row_scale, first, like, first, &p->row_scale));
    NK_TRY(check_rows(args, problem));
    NK_TRY(check_expected_rows(args, problem));
    return check_offsets(args, problem);
}

nk_status nk_spec_of_experts(const nk_grouped_gemm_args *args, const char *b_shape, const nk_view *like,
                             nk_grouped_gemm_problem *problem, nk_tensor specs[2])
{
    const nk_tensor *first = args->all.a, *b = args->all.b;
    const nk_gemm_problem *p = &problem->all;
    nk_encoded_output *to = &problem->encoded;
    if (!args->encoding.wanted) {
        return nk_spec_matrix("out", nk_result_dtype(args->all.out_dtype, first), first, like, p->m, p->n, specs);
    }
    NK_CHECK_AT(p->n % NK_SF_VEC == 0, NK_VALUE_ERROR, b,
                "shape %s, expected N to be a multiple of 16 with quantized=True, in %s", nk_shape_text(b).s, b_shape);
    *to = (nk_encoded_output){.wanted = true};
    NK_TRY(nk_check_alpha(&args->encoding.global_scale, 1, first, &to->global_scale));
    to->global_scale.inverse = args->encoding.inverse;
    NK_TRY(nk_spec_matrix("codes", NK_E2M1X2, first, like, p->m, p->n / 2, &specs[0]));
    return nk_spec_matrix("scales", NK_E4M3, first, like, p->m, p->n / NK_SF_VEC, &specs[1]);
}

static nk_status check_encoded(const nk_encoding_args *args, const nk_tensor specs[2], const nk_exec *exec,
                               const nk_tensor *first, nk_grouped_gemm_problem *problem)
{
    const nk_view rows = {.rank = 2, .l = 1, .rows = problem->all.m};
    nk_encoded_output *to = &problem->encoded;
    nk_view codes;
    int64_t batch_stride;
    NK_TRY(nk_check_codes_out(args->codes, &specs[0], exec, first, &codes, &to->codes));
    to->codes_row_stride = codes.row_stride;
    return nk_check_scales_out(args->scales, &specs[1], NK_SF_LINEAR, &rows, problem->all.n, exec, first, &to->sf,
                               &to->sf_row_stride, &batch_stride);
}

nk_status nk_check_experts_outputs(const nk_grouped_gemm_args *args, const nk_tensor specs[2], const nk_exec *exec,
                                   nk_grouped_gemm_problem *problem)
{
    const nk_gemm_args *all = &args->all;
    const nk_encoding_args *encoding = &args->encoding;
    const nk_tensor *tensors[] = {all->out,
                                  encoding->codes,
                                  encoding->scales,
                                  all->a,
                                  all->b,
                                  all->sfa,
                                  all->sfb,
                                  args->offsets,
                                  args->rows,
                                  all->bias,
                                  all->row_scale,
                                  all->alpha.tensor,
                                  encoding->global_scale.tensor};
    if (encoding->wanted)
        NK_TRY(check_encoded(encoding, specs, exec, all->a, problem));
    else
        NK_TRY(nk_check_out_matrix(all->out, specs, exec, all->a, &problem->all.d));
    for (int i = 0; i < 3; i++) {
        if (tensors[i]) NK_TRY(nk_check_disjoint(tensors[i], tensors, sizeof tensors / sizeof tensors[0]));
    }
    return NK_OK;
}

bool nk_are_experts_idle(const nk_grouped_gemm_problem *problem)
{
    return problem->groups == 0 || (problem->rows.data && problem->rows.tokens == 0);
}
