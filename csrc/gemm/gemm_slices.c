/* Plans and runs one problem: in slices of rows or of batches where its workspace would be too large, which are
 * multiplied one after the other. */
#include "gemm_plan.h"

typedef struct gemm_slices {
    int64_t rows, batches; /* of a slice */
} gemm_slices;

static gemm_slices slices_of(const gemm_family *family, const gemm_desc *d)
{
    const nk_gemm_problem *p = d->gemm;
    const gemm_slices whole = {p->m, p->l};
    if (!family->rows_at_once || d->experts || p->l == 0 || p->m == 0 || p->k == 0) return whole;
    const int64_t rows = family->rows_at_once(d);
    if (p->m <= rows / p->l) return whole;
    if (p->m <= rows) return (gemm_slices){p->m, rows / p->m};
    return (gemm_slices){rows / GEMM_SLICE_ROWS * GEMM_SLICE_ROWS, 1};
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

static void move_tokens(nk_operand *a, nk_output *out, int64_t k, int64_t batch, int64_t row)
{
    const int64_t atom_row_bytes = nk_sf_padded_cols(k / NK_SF_VEC) * NK_SF_ATOM_ROWS;
    move_batch(a, batch);
    a->data = moved(a->data, row * a->row_stride);
    a->sf =
        moved(a->sf, a->sf_layout == NK_SF_LINEAR ? row * a->sf_row_stride : row / NK_SF_ATOM_ROWS * atom_row_bytes);
    if (out->data) out->data += batch * out->batch_stride + row * out->row_stride;
}

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

/* The slice that begins at this batch and this row. */
static void slice_of(const gemm_desc *d, const gemm_slices *s, int64_t batch, int64_t row, gemm_call *c)
{
    const int64_t batches = least(d->gemm->l - batch, s->batches), rows = least(d->gemm->m - row, s->rows);
    if (d->op == GEMM_DUAL) {
        c->dual = *(const nk_dual_gemm_problem *)d->params;
        c->dual.l = batches;
        c->dual.m = rows;
        move_batch(&c->dual.b1, batch);
        move_batch(&c->dual.b2, batch);
        move_tokens(&c->dual.a, &c->dual.d, c->dual.k, batch, row);
        gemm_describe_dual_gemm(&c->dual, c);
    } else {
        c->gemm = *d->gemm;
        c->gemm.l = batches;
        c->gemm.m = rows;
        move_batch(&c->gemm.b, batch);
        move_tokens(&c->gemm.a, &c->gemm.d, c->gemm.k, batch, row);
        gemm_describe_gemm(&c->gemm, c);
    }
}

static bool is_whole(const gemm_slices *s, const gemm_desc *d)
{
    return s->rows >= d->gemm->m && s->batches >= d->gemm->l;
}

nk_status gemm_plan_tiles(const gemm_row *row, const gemm_family *f, const gemm_desc *d, const nk_settings *settings,
                          nk_plan *plan, gemm_launch *launch)
{
    gemm_query q;
    NK_TRY(gemm_query_of(f, d->gemm->device, settings, &q));
    const gemm_slices slices = slices_of(f, d);
    if (is_whole(&slices, d)) return gemm_plan_launch(row, d, &q, plan, launch);
    if (!are_aligned(&slices, d)) return nk_decline(plan, "batches are not aligned");
    gemm_call first;
    slice_of(d, &slices, 0, 0, &first);
    const nk_gemm_problem *p = first.desc.gemm;
    NK_TRY(gemm_plan_launch(row, &first.desc, &q, plan, launch));
    launch->us *= (double)d->gemm->l * (double)d->gemm->m / ((double)p->l * (double)p->m);
    return NK_OK;
}

nk_status gemm_run_tiles(const gemm_desc *d, const gemm_launch *launch, const nk_exec *exec)
{
    const gemm_family *f = launch->family;
    const gemm_slices slices = slices_of(f, d);
    if (is_whole(&slices, d)) return f->launch(d, launch, exec);
    gemm_call slice;
    for (int64_t batch = 0; batch < d->gemm->l; batch += slices.batches) {
        for (int64_t row = 0; row < d->gemm->m; row += slices.rows) {
            slice_of(d, &slices, batch, row, &slice);
            NK_TRY(f->launch(&slice.desc, launch, exec));
        }
    }
    return NK_OK;
}
