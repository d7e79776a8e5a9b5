/* dequantize: checks its arguments and dispatches. */
#include "op_check.h"

#include "backend.h"

static nk_status check(const nk_dequantize_args *args, nk_dequantize_problem *p, nk_tensor *spec)
{
    nk_view codes;
    *p = (nk_dequantize_problem){.device = args->codes->device};
    NK_TRY(nk_check_operand(args->codes, args->scales, "q.scales", args->layout, NK_FP4, args->codes, &p->q, &codes,
                            &p->k));
    NK_TRY(nk_check_alpha(&args->global_scale, 1, args->codes, &p->global_scale));
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
