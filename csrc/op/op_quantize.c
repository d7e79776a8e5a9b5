/* quantize: checks its arguments and dispatches. */
#include "op_quantize.h"

#include "backend.h"

#include <inttypes.h>

#define LEAST_E4M3 0x1p-9f /* above 0 */

typedef struct quantize_outputs {
    nk_tensor spec[NK_QUANTIZE_OUTPUTS]; /* codes, scales, amax_out */
    int count;
} quantize_outputs;

static nk_status scales_spec(const nk_quantize_args *args, const nk_view *x, const nk_quantize_problem *p,
                             nk_tensor *spec)
{
    int64_t cols = p->k / NK_SF_VEC;
    if (args->layout == NK_SF_LINEAR) return nk_spec_matrix("scales", NK_E4M3, args->x, x, x->rows, cols, spec);
    return nk_spec_matrix("scales", NK_E4M3, args->x, x, p->sf_padded_rows, nk_sf_padded_cols(cols), spec);
}

/* `t` is [.., M, K] with K a multiple of 16, contiguous along K. */
static nk_status check_input(const nk_tensor *t, unsigned dtypes, const nk_tensor *first, nk_view *view)
{
    NK_TRY(nk_check_tensor(t, dtypes, first));
    NK_TRY(nk_view_of(t, "[.., K]", view));
    NK_CHECK_AT(view->cols % NK_SF_VEC == 0, NK_VALUE_ERROR, t, "shape %s, expected K to be a multiple of 16",
                nk_shape_text(t).s);
    NK_CHECK_AT(view->cols <= 1 || view->col_stride == nk_dtype_size(t->dtype), NK_VALUE_ERROR, t,
                "stride %" PRId64 " along K, expected 1, as after .contiguous()",
                view->col_stride / nk_dtype_size(t->dtype));
    return NK_OK;
}

static nk_status check_up(const nk_quantize_args *args, const nk_view *x, nk_quantize_problem *p)
{
    const nk_tensor *up = args->up;
    nk_view view;
    NK_TRY(check_input(up, NK_DTYPE_BIT(args->x->dtype), args->x, &view));
    bool same = nk_same_lead(&view, x) && view.rows == x->rows && view.cols == x->cols;
    NK_CHECK_AT(same, NK_VALUE_ERROR, up, "shape %s, expected %s, the shape of x", nk_shape_text(up).s,
                nk_shape_text(args->x).s);
    p->up = up->data;
    p->up_row_stride = view.row_stride;
    p->up_batch_stride = view.batch_stride;
    return NK_OK;
}

static nk_status check(const nk_quantize_args *args, nk_quantize_problem *p, nk_view *x, quantize_outputs *outs)
{
    const nk_tensor *first = args->x;
    NK_TRY(check_input(first, NK_FLOATS, first, x));
    *p = (nk_quantize_problem){
        .device = first->device,
        .l = x->l,
        .rows = x->rows,
        .k = x->cols,
        .x = first->data,
        .x_dtype = first->dtype,
        .x_row_stride = x->row_stride,
        .x_batch_stride = x->batch_stride,
        .layout = args->layout,
        .sf_padded_rows = nk_sf_padded_rows(x->rows),
    };
    if (args->up) NK_TRY(check_up(args, x, p));
    const float smallest = args->smallest_scale;
    NK_CHECK(smallest == 0 || (smallest >= LEAST_E4M3 && smallest <= NK_E4M3_MAX), NK_VALUE_ERROR,
             "smallest_scale: %g, expected 0 or a number from 2^-9 to 448", (double)smallest);
    p->smallest_scale = smallest > 0 ? smallest : 0; /* not -0, which some conversions keep */
    p->recipe = args->recipe;
    if (args->recipe == NK_RECIPE_FOUR_SIX) {
        NK_CHECK_AT(!args->up, NK_VALUE_ERROR, args->up, "given, expected None with recipe='four_six'");
        NK_CHECK(!args->inverse, NK_VALUE_ERROR, "global_scale_inverse: given, expected None with recipe='four_six'");
    }
    NK_CHECK(!args->amax || !args->inverse, NK_VALUE_ERROR,
             "global_scale_inverse: given, expected None with global_scale='%s'", args->per_token ? "token" : "amax");
    NK_TRY(nk_check_alpha(&args->global_scale, 1, first, &p->global_scale));
    p->global_scale.inverse = args->inverse;
    if (args->offsets) {
        const nk_tensor *offsets = args->offsets;
        int64_t atoms;
        NK_CHECK_AT(args->layout == NK_SF_BLOCKED && x->rank == 2, NK_VALUE_ERROR, offsets,
                    "given, expected None unless scale_layout='blocked' and x is [M, K]");
        NK_TRY(nk_check_offsets(offsets, x->rows, first, &atoms));
        p->offsets = offsets->data;
        p->groups = offsets->shape[0] - 1;
        p->sf_padded_rows = (x->rows / NK_SF_ATOM_ROWS + p->groups) * NK_SF_ATOM_ROWS; /* enough for any offsets */
    }
    NK_TRY(nk_spec_matrix("codes", NK_E2M1X2, first, x, x->rows, x->cols / 2, &outs->spec[0]));
    NK_TRY(scales_spec(args, x, p, &outs->spec[1]));
    outs->count = args->amax ? 3 : 2;
    p->per_token = args->per_token;
    const bool many = args->per_token && first->ndim > 1;
    outs->spec[2] = nk_spec("global_scale", NK_F32, first->device, many ? first->ndim - 1 : 1,
                            many ? first->shape : (int64_t[]){1});
    return NK_OK;
}

nk_status nk_quantize_out(const nk_quantize_args *args, nk_tensor specs[NK_QUANTIZE_OUTPUTS], int *count)
{
    nk_quantize_problem problem;
    nk_view x;
    quantize_outputs outs;
    NK_TRY(check(args, &problem, &x, &outs));
    for (int i = 0; i < outs.count; i++)
        specs[i] = outs.spec[i];
    *count = outs.count;
    return NK_OK;
}

nk_status nk_check_codes_out(const nk_tensor *codes, const nk_tensor *spec, const nk_exec *exec, const nk_tensor *first,
                             nk_view *view, uint8_t **data)
{
    NK_TRY(nk_check_out(&codes, spec, NK_FP4, exec, first));
    NK_TRY(nk_view_of(codes, "[.., K/2]", view));
    NK_CHECK_AT(view->cols <= 1 || view->col_stride == 1, NK_VALUE_ERROR, codes,
                "stride %" PRId64 " along K, expected 1, as after .contiguous()", view->col_stride);
    *data = codes->data;
    return NK_OK;
}

nk_status nk_check_scales_out(const nk_tensor *scales, const nk_tensor *spec, nk_sf_layout layout, const nk_view *rows,
                              int64_t k, const nk_exec *exec, const nk_tensor *first, uint8_t **data,
                              int64_t *row_stride, int64_t *batch_stride)
{
    const bool is_given = scales;
    const uint8_t *sf;
    if (!is_given) NK_TRY(nk_check_out(&scales, spec, NK_FP8, exec, first));
    NK_TRY(nk_check_scales(scales, layout, rows, k, first, &sf, row_stride, batch_stride));
    if (is_given) NK_TRY(nk_check_writable(scales));
    *data = scales->data;
    return NK_OK;
}

nk_status nk_quantize(const nk_quantize_args *args, nk_exec *exec)
{
    nk_quantize_problem p;
    nk_view x, codes;
    quantize_outputs outs;
    NK_TRY(check(args, &p, &x, &outs));

    NK_TRY(nk_check_codes_out(args->codes, &outs.spec[0], exec, args->x, &codes, &p.codes));
    p.codes_row_stride = codes.row_stride;
    p.codes_batch_stride = codes.batch_stride;

    nk_view rows = x;
    if (args->layout == NK_SF_BLOCKED) rows.rows = p.sf_padded_rows;
    NK_TRY(nk_check_scales_out(args->scales, &outs.spec[1], args->layout, &rows, p.k, exec, args->x, &p.sf,
                               &p.sf_row_stride, &p.sf_batch_stride));

    const nk_tensor *amax_out = args->amax_out;
    if (args->amax) {
        NK_TRY(nk_check_out(&amax_out, &outs.spec[2], NK_DTYPE_BIT(NK_F32), exec, args->x));
        nk_row_scale of_rows = {0};
        if (args->per_token) NK_TRY(nk_check_row_scale(amax_out, args->x, &x, args->x, &of_rows));
        p.amax_out = amax_out->data;
        p.amax_row_stride = of_rows.stride;
        p.amax_batch_stride = of_rows.batch_stride;
    }
    const nk_tensor *all[] = {args->codes, args->scales,  args->amax_out,           args->x,
                              args->up,    args->offsets, args->global_scale.tensor};
    for (int i = 0; i < outs.count; i++) {
        if (all[i]) NK_TRY(nk_check_disjoint(all[i], all, sizeof all / sizeof all[0]));
    }
    NK_DISPATCH(quantize, &p, exec, false); /* not empty: even an empty x may have padding or a global scale to write */
}
