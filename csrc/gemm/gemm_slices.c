/* Plans and runs one problem: in slices of rows or of batches where its workspace would be too large, which are
 * multiplied one after the other. */
#include "gemm_plan.h"

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

typedef struct gemm_slices {
    int64_t rows, batches; /* of a slice */
} gemm_slices;

/* Slices of rows are equal, but for the last. Those of experts begin at any row. */
static gemm_slices slices_of(const gemm_desc *d, const gemm_query *q)
{
    const nk_gemm_problem *p = d->gemm;
    if (!q->family->rows_at_once || p->l == 0 || p->m == 0 || p->k == 0) return (gemm_slices){p->m, p->l};
    const int64_t unit = d->experts ? 1 : GEMM_SLICE_ROWS;
    const int64_t rows = least(q->family->rows_at_once(d), q->row_limit);
    if (p->m <= rows) return (gemm_slices){p->m, least(rows / p->m, p->l)};
    const int64_t units = rows > unit ? rows / unit : 1, slices = nk_ceil_div(p->m, units * unit);
    return (gemm_slices){nk_ceil_div(nk_ceil_div(p->m, slices), unit) * unit, 1};
}

static int64_t count_of(const gemm_slices *s, const gemm_desc *d)
{
    return s->rows < d->gemm->m || s->batches < d->gemm->l
               ? nk_ceil_div(d->gemm->m, s->rows) * nk_ceil_div(d->gemm->l, s->batches)
               : 0;
}

/* Whether tensor maps can begin at every slice: those of the first are checked, the rest begin at other batches. */
static bool are_aligned(const gemm_slices *s, const gemm_desc *d)
{
    const nk_gemm_problem *p = d->gemm;
    const nk_operand *up = d->up;
    if (p->l <= 1 || s->batches >= p->l) return true;
    const int64_t strides = p->a.batch_stride | p->b.batch_stride | p->b.sf_batch_stride;
    return ((strides | (up ? up->batch_stride | up->sf_batch_stride : 0)) & 15) == 0;
}

static const uint8_t *moved(const uint8_t *at, int64_t bytes) { return at ? at + bytes : NULL; }

static void move_batch(nk_operand *o, int64_t batch)
{
    o->data = moved(o->data, batch * o->batch_stride);
    o->sf = moved(o->sf, batch * o->sf_batch_stride);
}

static void move_output(nk_output *out, int64_t batch, int64_t row)
{
    if (out->data) out->data += batch * out->batch_stride + row * out->row_stride;
}

static void move_row_scale(nk_row_scale *scale, int64_t batch, int64_t row)
{
    if (scale->data) scale->data += batch * scale->batch_stride + row * scale->stride;
}

static void move_tokens(nk_operand *a, nk_output *out, nk_row_scale *scale, int64_t k, int64_t batch, int64_t row)
{
    const int64_t atom_row_bytes = nk_sf_padded_cols(k / NK_SF_VEC) * NK_SF_ATOM_ROWS;
    move_batch(a, batch);
    a->data = moved(a->data, row * a->row_stride);
    a->sf =
        moved(a->sf, a->sf_layout == NK_SF_LINEAR ? row * a->sf_row_stride : row / NK_SF_ATOM_ROWS * atom_row_bytes);
    move_output(out, batch, row);
    move_row_scale(scale, batch, row);
}

/* Gathered rows move in their index. Blocked scale factors stay: they follow tokens, or whole experts. */
static void move_rows_of_experts(nk_grouped_gemm_problem *e, int64_t row)
{
    nk_operand *a = &e->all.a;
    nk_encoded_output *to = &e->encoded;
    move_output(&e->all.d, 0, row);
    if (to->wanted) {
        to->codes += row * to->codes_row_stride;
        to->sf += row * to->sf_row_stride;
    }
    if (e->rows.data) {
        e->rows.data += row;
        return;
    }
    move_row_scale(&e->all.row_scale, 0, row);
    a->data = moved(a->data, row * a->row_stride);
    if (a->sf_layout == NK_SF_LINEAR) a->sf = moved(a->sf, row * a->sf_row_stride);
}

static void slice_of_experts(const gemm_desc *d, int64_t row, int64_t rows, gemm_call *c)
{
    c->experts = *d->experts;
    c->experts.all.m = rows;
    c->experts.expected_rows = least(d->experts->expected_rows, rows);
    move_rows_of_experts(&c->experts, row);
    c->desc = *d;
    c->desc.gemm = c->member = &c->experts.all;
    c->desc.members = &c->member;
    c->desc.experts = &c->experts;
    c->desc.params = c->desc.gemm;
    c->desc.slice.first_row = row;
    if (!d->gated) return;
    c->gated = *d->gated;
    c->gated.m = rows;
    c->gated.a = c->experts.all.a;
    c->gated.d = c->experts.all.d;
    c->gated.encoded = c->experts.encoded;
    c->gated.row_scale = c->experts.all.row_scale;
    c->desc.gated = &c->gated;
    c->desc.params = &c->gated;
    c->desc.up = &c->gated.b2;
}

/* The slice that begins at this batch and this row. */
static void slice_of(const gemm_desc *d, const gemm_slices *s, int64_t batch, int64_t row, gemm_call *c)
{
    const int64_t batches = least(d->gemm->l - batch, s->batches), rows = least(d->gemm->m - row, s->rows);
    if (d->experts) {
        slice_of_experts(d, row, rows, c);
    } else if (d->op == GEMM_DUAL) {
        c->dual = *(const nk_dual_gemm_problem *)d->params;
        c->dual.l = batches;
        c->dual.m = rows;
        move_batch(&c->dual.b1, batch);
        move_batch(&c->dual.b2, batch);
        move_tokens(&c->dual.a, &c->dual.d, &c->dual.row_scale, c->dual.k, batch, row);
        gemm_describe_dual_gemm(&c->dual, c);
    } else {
        c->gemm = *d->gemm;
        c->gemm.l = batches;
        c->gemm.m = rows;
        move_batch(&c->gemm.b, batch);
        move_tokens(&c->gemm.a, &c->gemm.d, &c->gemm.row_scale, c->gemm.k, batch, row);
        gemm_describe_gemm(&c->gemm, c);
    }
}

/* The whole chooses the tile of experts, since it says how many rows they have: a slice has all rows of some. */
static nk_status plan_slices(const gemm_row *row, const gemm_desc *d, const gemm_desc *first, const gemm_query *q,
                             nk_plan *plan, gemm_launch *launch)
{
    const nk_gemm_problem *p = first->gemm;
    NK_TRY(gemm_plan_launch(row, d->experts ? d : first, q, plan, launch));
    if (d->experts)
        q->family->derive(first, q, launch);
    else
        launch->us *= (double)d->gemm->l * (double)d->gemm->m / ((double)p->l * (double)p->m);
    return NK_OK;
}

nk_status gemm_plan_tiles(const gemm_row *row, const gemm_family *f, const gemm_desc *d, const nk_settings *settings,
                          nk_plan *plan, gemm_launch *launch)
{
    gemm_query q;
    gemm_call first;
    NK_TRY(gemm_query_of(f, d->gemm->device, settings, &q));
    const gemm_slices slices = slices_of(d, &q);
    const int64_t count = count_of(&slices, d);
    if (!are_aligned(&slices, d)) return nk_decline(plan, "batches are not aligned");
    if (count == 0) {
        NK_TRY(gemm_plan_launch(row, d, &q, plan, launch));
    } else {
        slice_of(d, &slices, 0, 0, &first);
        NK_TRY(plan_slices(row, d, &first.desc, &q, plan, launch));
    }
    launch->slice_rows = slices.rows;
    launch->slice_batches = slices.batches;
    launch->plan.slices = count;
    *plan = launch->plan;
    return NK_OK;
}

nk_status gemm_run_tiles(const gemm_desc *d, const gemm_launch *launch, const nk_exec *exec)
{
    const gemm_slices slices = {launch->slice_rows, launch->slice_batches};
    if (count_of(&slices, d) == 0) return launch->family->launch(d, launch, exec);
    gemm_call slice;
    for (int64_t batch = 0; batch < d->gemm->l; batch += slices.batches) {
        for (int64_t row = 0; row < d->gemm->m; row += slices.rows) {
            slice_of(d, &slices, batch, row, &slice);
            NK_TRY(launch->family->launch(&slice.desc, launch, exec));
        }
    }
    return NK_OK;
}
