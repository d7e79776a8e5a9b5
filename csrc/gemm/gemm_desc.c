/* Describes each operator's problem as a GEMM, and cuts large ones into slices. */
#include "gemm_plan.h"

int64_t gemm_m_tiles(const gemm_desc *d, int32_t tile_m)
{
    const int64_t m = d->gemm->m, experts = gemm_experts(d), busy = experts < m ? experts : m;
    return d->experts ? (m - busy) / tile_m + busy : nk_ceil_div(m, tile_m);
}

static gemm_desc *describe(gemm_call *c, gemm_operator op, const nk_gemm_problem *gemm, const void *params,
                           const void *problem)
{
    c->member = gemm;
    c->desc =
        (gemm_desc){.op = op, .gemm = gemm, .params = params, .problem = problem, .count = 1, .members = &c->member};
    return &c->desc;
}

const gemm_desc *gemm_describe_gemm(const nk_gemm_problem *p, gemm_call *c) { return describe(c, GEMM, p, p, p); }

const gemm_desc *gemm_describe_dual_gemm(const nk_dual_gemm_problem *p, gemm_call *c)
{
    c->gemm = (nk_gemm_problem){
        .device = p->device, .l = p->l, .m = p->m, .n = p->n, .k = p->k, .a = p->a, .b = p->b1, .d = p->d};
    describe(c, GEMM_DUAL, &c->gemm, p, p)->up = &p->b2;
    return &c->desc;
}

const gemm_desc *gemm_describe_grouped_gemm(const nk_grouped_gemm_problem *p, gemm_call *c)
{
    if (p->list) return describe(c, GEMM_LIST, p->list, NULL, p);
    describe(c, GEMM_GROUPED, &p->all, &p->all, p)->experts = p;
    return &c->desc;
}

/* Where its blocked scale factors do not begin an atom, they begin in the atom of the last gate rows. */
static nk_operand ups_of(const nk_gemm_problem *gates)
{
    const int64_t atoms = gates->n / NK_SF_ATOM_ROWS;
    nk_operand up = gates->b;
    if (!up.data) return up; /* there are no experts */
    up.data += gates->n * up.row_stride;
    up.sf += up.sf_layout == NK_SF_BLOCKED ? atoms * NK_SF_ATOM_ROWS * nk_sf_padded_cols(gates->k / NK_SF_VEC)
                                           : gates->n * up.sf_row_stride;
    return up;
}

const gemm_desc *gemm_describe_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, gemm_call *c)
{
    const nk_gemm_problem *gates = &p->gates.all;
    c->gated = (gemm_gated){.device = p->device,
                            .m = gates->m,
                            .n = gates->n,
                            .k = gates->k,
                            .a = gates->a,
                            .b1 = gates->b,
                            .b2 = ups_of(gates),
                            .alpha1 = gates->alpha,
                            .alpha2 = p->alpha_ups,
                            .activation = p->activation,
                            .d = gates->d,
                            .encoded = p->encoded};
    gemm_desc *d = describe(c, GEMM_GROUPED_DUAL, gates, &c->gated, p);
    d->experts = &p->gates;
    d->gated = &c->gated;
    d->up = &c->gated.b2;
    return d;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Slices                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

gemm_slices gemm_slices_of(const gemm_family *family, const gemm_desc *d)
{
    const nk_gemm_problem *p = d->gemm;
    const gemm_slices whole = {p->m, p->l};
    if (!family->rows_at_once || d->experts || p->l == 0 || p->m == 0 || p->k == 0) return whole;
    const int64_t rows = family->rows_at_once(d);
    if (p->m <= rows / p->l) return whole;
    if (p->m <= rows) return (gemm_slices){p->m, rows / p->m};
    return (gemm_slices){rows / GEMM_SLICE_ROWS * GEMM_SLICE_ROWS, 1};
}

bool gemm_slices_are_aligned(const gemm_slices *s, const gemm_desc *d)
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

void gemm_slice(const gemm_desc *d, const gemm_slices *s, int64_t batch, int64_t row, gemm_call *c)
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

/* Whether the family has a kernel of a tile for some operand types. */
static bool gemm_has_kernel(const gemm_family *f, gemm_operator op, int tile)
{
    static const nk_dtype types[][2] = {{NK_E2M1X2, NK_E2M1X2}, {NK_F16, NK_E2M1X2}, {NK_F16, NK_F16}};
    for (int i = 0; i < 3; i++) {
        const nk_gemm_problem p = {.a.dtype = types[i][0], .b.dtype = types[i][1]};
        if (f->kernel(&(gemm_desc){.op = op, .gemm = &p}, tile)) return true;
    }
    return false;
}

void gemm_describe_tile(const void *of, int tile, nk_tile_info *info)
{
    static const char *const names[GEMM_OPERATORS] = {"gemm", "dual_gemm", "grouped_gemm", "grouped_dual_gemm",
                                                      "list_gemm"};
    const gemm_family *f = of;
    const gemm_config *t = &f->configs[tile];
    int count = 0;
    info->tile_m = t->tile_m;
    info->tile_n = t->tile_n;
    info->tile_k = t->tile_k;
    info->stages = t->stages;
    info->cluster = t->cluster;
    info->split_k = t->split_k;
    info->warpgroups = t->warpgroups;
    info->ctas_per_mma = t->ctas_per_mma;
    info->multicast = t->multicast;
    for (int op = 0; op < GEMM_OPERATORS; op++)
        if (gemm_has_kernel(f, op, tile)) info->operators[count++] = names[op];
}
