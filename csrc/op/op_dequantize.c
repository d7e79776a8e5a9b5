/* dequantize: checks its arguments and dispatches. */
#include "op_check.h"

#include "backend.h"

/* One element, or one for each row. */
static nk_status check_global_scale(const nk_scalar *scale, const nk_tensor *of, const nk_view *codes,
                                    nk_alpha *checked)
{
    nk_row_scale of_rows;
    if (!scale->tensor || nk_numel(scale->tensor) == 1) return nk_check_alpha(scale, 1, of, checked);
    NK_TRY(nk_check_row_scale(scale->tensor, of, codes, of, &of_rows));
    *checked = (nk_alpha){.data = of_rows.data, .stride = of_rows.stride, .group_stride = of_rows.batch_stride};
    return NK_OK;
}

static nk_status check(const nk_dequantize_args *args, nk_dequantize_problem *p, nk_tensor *spec)
{
    nk_view codes;
    *p = (nk_dequantize_problem){.device = args->codes->device};
    NK_TRY(nk_check_operand(args->codes, args->scales, "q.scales", args->layout, NK_FP4, args->codes, &p->q, &codes,
                            &p->k));
    NK_TRY(check_global_scale(&args->global_scale, args->codes, &codes, &p->global_scale));
    p->l = codes.l;
    p->rows = codes.rows;
    return nk_spec_matrix("out", args->out_dtype, args->codes, &codes, p->rows, p->k, spec);
}

nk_status nk_dequantize_out(const nk_dequantize_args *args, nk_tensor *spec)
{
    nk_dequantize_problem problem;
    return check(args, &problem, spec);
}

nk_status nk_dequantize(const nk_dequantize_args *args, nk_exec *exec)
{
    nk_dequantize_problem problem;
    nk_tensor spec;
    NK_TRY(check(args, &problem, &spec));
    NK_TRY(nk_check_out_matrix(args->out, &spec, exec, args->codes, &problem.out));
    if (args->out) {
        const nk_tensor *inputs[] = {args->codes, args->scales, args->global_scale.tensor};
        NK_TRY(nk_check_disjoint(args->out, inputs, sizeof inputs / sizeof inputs[0]));
    }
    NK_DISPATCH(dequantize, &problem, exec, nk_numel(&spec) == 0);
}
