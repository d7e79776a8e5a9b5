/* grouped_gemm: checks the arguments of both forms and dispatches. */
#include "op_gemm.h"

#include "backend.h"

#include <inttypes.h>

size_t nk_gemm_problem_size(void) { return sizeof(nk_gemm_problem); }

/* ---------------------------------------------------------------------------------------------------------------- */
/* List form: every group is a gemm of its own                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A 16-bit b may be contiguous along N instead of K, since torch's grouped_mm takes it so. */
static nk_status check_16_bit_strides(const nk_tensor *b, const nk_operand *operand)
{
    const int64_t size = nk_dtype_size(b->dtype), *shape = &b->shape[b->ndim - 2];
    NK_CHECK_AT(shape[1] <= 1 || shape[0] <= 1 || operand->k_stride == size || operand->row_stride == size,
                NK_VALUE_ERROR, b, "strides of %" PRId64 " and %" PRId64 " elements, expected K or N to be contiguous",
                operand->row_stride / size, operand->k_stride / size);
    return NK_OK;
}

static nk_status check_group(const nk_gemm_args *args, const nk_tensor *first, nk_gemm_problem *problem,
                             nk_tensor *spec)
{
    nk_view like;
    NK_CHECK_AT(args->a->ndim == 2, NK_VALUE_ERROR, args->a, "shape %s, expected a matrix for a group",
                nk_shape_text(args->a).s);
    NK_TRY(nk_gemm_inputs(args, NK_FP4 | NK_HALVES, NK_FP4 | NK_HALVES, first, problem, &like));
    NK_TRY(nk_check_k_innermost(args->a, &problem->a));
    NK_TRY(check_16_bit_strides(args->b, &problem->b));
    NK_TRY(nk_check_alpha(&args->alpha, problem->n, first, &problem->alpha));
    NK_TRY(nk_check_bias(args->bias, problem->n, first, &problem->bias));
    NK_TRY(nk_spec_matrix("out", args->out_dtype, first, &like, problem->m, problem->n, spec));
    spec->index = args->a->index;
    return NK_OK;
}

static nk_status run_list(const nk_grouped_gemm_args *args, nk_exec *exec)
{
    nk_grouped_gemm_problem problem = {.groups = args->groups, .list = args->problems};
    bool empty = true;
    for (int64_t g = 0; g < args->groups; g++) {
        const nk_tensor *first = args->list[0].a;
        nk_tensor spec;
        problem.device = first->device;
        NK_TRY(check_group(&args->list[g], first, &args->problems[g], &spec));
        NK_TRY(nk_check_out_matrix(args->list[g].out, &spec, exec, first, &args->problems[g].d));
        empty = empty && nk_numel(&spec) == 0;
    }
    NK_TRY(nk_check_disjoint_groups(args->list, args->groups));
    NK_DISPATCH(grouped_gemm, &problem, exec, empty);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Contiguous form: experts are ranges of rows */
/* ---------------------------------------------------------------------------------------------------------------- */

static int64_t clamp(int64_t x, int64_t most) { return x < 0 ? 0 : x > most ? most : x; }

/* Every row of an expert names a token; the others, behind the last expert, may hold anything. Of the offsets, which
 * another thread may have written since they were checked, each is read once. */
static NK_APART nk_status check_tokens(const nk_tensor *rows, const nk_tensor *offsets, const nk_token_rows *checked)
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

static nk_status check_contiguous(const nk_grouped_gemm_args *args, nk_grouped_gemm_problem *problem, nk_tensor *spec)
{
    const nk_gemm_args *all = &args->all;
    const nk_tensor *first = all->a, *offsets = args->offsets;
    nk_gemm_problem *p = &problem->all;
    nk_view a, b;
    int64_t k;
    *problem = (nk_grouped_gemm_problem){.device = first->device, .all.device = first->device, .all.l = 1};
    NK_CHECK_AT(first->ndim == 2, NK_VALUE_ERROR, first, "shape %s, expected [sum M, K/2]", nk_shape_text(first).s);
    NK_CHECK_AT(all->b->ndim == 3, NK_VALUE_ERROR, all->b, "shape %s, expected [G, N, K/2]", nk_shape_text(all->b).s);
    NK_TRY(nk_check_operand(first, all->sfa, "sfa", all->sfa_layout, NK_FP4 | NK_HALVES, first, &p->a, &a, &p->k));
    NK_TRY(nk_check_k_innermost(first, &p->a));
    NK_TRY(nk_check_operand(all->b, all->sfb, "sfb", all->sfb_layout, NK_FP4 | NK_HALVES, first, &p->b, &b, &k));
    NK_TRY(check_16_bit_strides(all->b, &p->b));
    NK_TRY(nk_check_same_k(all->b, k, first, p->k));
    NK_CHECK_AT(p->b.dtype == NK_E2M1X2 || p->b.dtype == p->a.dtype, NK_TYPE_ERROR, all->b,
                "dtype %s, expected %s like a", nk_dtype_name(all->b->dtype), nk_dtype_name(first->dtype));
    problem->groups = b.l;
    p->m = a.rows;
    p->n = b.rows;
    NK_TRY(check_rows(args, problem));

    NK_CHECK_AT(offsets->ndim == 1 && offsets->shape[0] == b.l + 1, NK_VALUE_ERROR, offsets,
                "shape %s, expected (%" PRId64 ",): one more than the experts of b", nk_shape_text(offsets).s, b.l + 1);
    int64_t atoms;
    NK_TRY(nk_check_offsets(offsets, p->m, first, &atoms));
    problem->offsets = offsets->data;
    if (args->rows) {
        if (first->device.type == NK_CPU) NK_TRY(check_tokens(args->rows, offsets, &problem->rows));
    } else if (p->a.sf && p->a.sf_layout == NK_SF_BLOCKED) {
        int64_t bytes;
        problem->a_sf_bytes = nk_numel(all->sfa);
        NK_TRY(nk_blocked_bytes(all->sfa, atoms * NK_SF_ATOM_ROWS, p->k, &bytes));
        NK_CHECK_AT(problem->a_sf_bytes >= bytes, NK_VALUE_ERROR, all->sfa,
                    "%" PRId64 " bytes, expected at least %" PRId64 ": each expert's rows start at an atom of 128",
                    problem->a_sf_bytes, bytes);
    }

    /* alpha has one element, or is [G] or [G, N]; bias is [G, N] */
    const nk_tensor *t = all->alpha.tensor;
    p->alpha.value = all->alpha.value;
    if (t) {
        NK_TRY(nk_check_tensor(t, NK_DTYPE_BIT(NK_F32), first));
        bool one = nk_numel(t) == 1, per_expert = t->ndim == 1 && t->shape[0] == b.l;
        NK_CHECK_AT(one || per_expert || (t->ndim == 2 && t->shape[0] == b.l && t->shape[1] == b.rows), NK_VALUE_ERROR,
                    t, "shape %s, expected one element, (%" PRId64 ",) or (%" PRId64 ", %" PRId64 ")",
                    nk_shape_text(t).s, b.l, b.l, b.rows);
        p->alpha.data = t->data;
        p->alpha.group_stride = one ? 0 : t->stride[0];
        p->alpha.stride = one || per_expert ? 0 : t->stride[1];
    }
    t = all->bias;
    if (t) {
        NK_TRY(nk_check_tensor(t, NK_FLOATS, first));
        NK_CHECK_AT(t->ndim == 2 && t->shape[0] == b.l && t->shape[1] == b.rows, NK_VALUE_ERROR, t,
                    "shape %s, expected (%" PRId64 ", %" PRId64 ")", nk_shape_text(t).s, b.l, b.rows);
        int64_t size = nk_dtype_size(t->dtype);
        p->bias = (nk_bias){t->data, t->dtype, t->stride[1] * size, t->stride[0] * size};
    }
    return nk_spec_matrix("out", all->out_dtype, first, &a, p->m, p->n, spec);
}

static nk_status run_contiguous(const nk_grouped_gemm_args *args, nk_exec *exec)
{
    nk_grouped_gemm_problem problem;
    nk_tensor spec;
    NK_TRY(check_contiguous(args, &problem, &spec));
    NK_TRY(nk_gemm_output(&args->all, &spec, exec, args->all.a, &problem.all));
    const nk_tensor *indices[] = {args->offsets, args->rows};
    if (args->all.out) NK_TRY(nk_check_disjoint(args->all.out, indices, 2));
    const bool tokenless = args->rows && problem.rows.tokens == 0; /* nothing that a value could be clamped to */
    NK_DISPATCH(grouped_gemm, &problem, exec, nk_numel(&spec) == 0 || problem.groups == 0 || tokenless);
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
