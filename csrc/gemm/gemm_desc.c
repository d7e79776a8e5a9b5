/* Describes each operator's problem as a GEMM, and a family's tiles for people. */
#include "gemm_family.h"

#include <math.h>

/* Experts that can have any of m rows. */
static int64_t busy_experts(const gemm_desc *d, int64_t m) { return gemm_experts(d) < m ? gemm_experts(d) : m; }

static int64_t most_m_tiles(const gemm_desc *d, int64_t m, int32_t tile_m)
{
    const int64_t busy = busy_experts(d, m);
    return d->experts ? (m - busy) / tile_m + busy : nk_ceil_div(m, tile_m);
}

int64_t gemm_m_tiles(const gemm_desc *d, int32_t tile_m) { return most_m_tiles(d, d->gemm->m, tile_m); }

int64_t gemm_expected_m_tiles(const gemm_desc *d, int32_t tile_m)
{
    return most_m_tiles(d, gemm_expected_m(d), tile_m);
}

int64_t gemm_even_m_tiles(const gemm_desc *d, int32_t tile_m)
{
    const int64_t m = gemm_expected_m(d), busy = busy_experts(d, m);
    return busy ? busy * nk_ceil_div(nk_ceil_div(m, busy), tile_m) : 0;
}

const char *gemm_why_not_sizes(const gemm_desc *d)
{
    const nk_gemm_problem *p = d->gemm;
    if (p->k == 0) return GEMM_K_IS_0;
    const bool fits = p->l <= GEMM_LARGEST && p->m <= GEMM_LARGEST && p->n <= GEMM_LARGEST && p->k <= GEMM_LARGEST;
    return fits && gemm_experts(d) <= GEMM_LARGEST ? NULL : GEMM_TOO_LARGE;
}

static gemm_desc *describe(gemm_call *c, gemm_operator op, const nk_gemm_problem *gemm, const void *params)
{
    c->member = gemm;
    c->desc = (gemm_desc){.op = op, .gemm = gemm, .params = params, .count = 1, .members = &c->member};
    return &c->desc;
}

const gemm_desc *gemm_describe_gemm(const nk_gemm_problem *p, gemm_call *c) { return describe(c, GEMM, p, p); }

const gemm_desc *gemm_describe_dual_gemm(const nk_dual_gemm_problem *p, gemm_call *c)
{
    c->gemm = (nk_gemm_problem){.device = p->device,
                                .l = p->l,
                                .m = p->m,
                                .n = p->n,
                                .k = p->k,
                                .a = p->a,
                                .b = p->b1,
                                .d = p->d,
                                .row_scale = p->row_scale};
    describe(c, GEMM_DUAL, &c->gemm, p)->up = &p->b2;
    return &c->desc;
}

static gemm_desc *describe_experts(gemm_call *c, gemm_operator op, const nk_grouped_gemm_problem *p, const void *params)
{
    gemm_desc *d = describe(c, op, &p->all, params);
    d->experts = p;
    d->slice.rows = p->all.m;
    return d;
}

const gemm_desc *gemm_describe_grouped_gemm(const nk_grouped_gemm_problem *p, gemm_call *c)
{
    if (p->list)
        describe(c, GEMM_LIST, p->list, NULL)->list = p;
    else
        describe_experts(c, GEMM_GROUPED, p, &p->all);
    c->desc.activation = gemm_activation_of(p);
    return &c->desc;
}

static bool is_plain_silu(const nk_activation *a) { return a->kind == NK_SILU && a->limit == INFINITY; }

const gemm_desc *gemm_describe_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, gemm_call *c)
{
    const nk_gemm_problem *gates = &p->gates.all;
    c->gated = (gemm_gated){.device = p->device,
                            .m = gates->m,
                            .n = gates->n,
                            .k = gates->k,
                            .a = gates->a,
                            .b1 = gates->b,
                            .b2 = p->ups,
                            .alpha1 = gates->alpha,
                            .alpha2 = p->alpha_ups,
                            .bias1 = gates->bias,
                            .bias2 = p->bias_ups,
                            .activation = p->activation,
                            .d = gates->d,
                            .encoded = p->gates.encoded,
                            .row_scale = gates->row_scale};
    gemm_desc *d = describe_experts(c, GEMM_GROUPED_DUAL, &p->gates, &c->gated);
    d->gated = &c->gated;
    d->up = &c->gated.b2;
    if (p->gates.encoded.wanted && !is_plain_silu(&p->activation)) d->activation = &c->gated.activation;
    return d;
}

/* Whether the family has a kernel of a tile for some operand types. */
static bool gemm_has_kernel(const gemm_family *f, gemm_operator op, const nk_activation *activation, int tile)
{
    static const nk_dtype types[][2] = {{NK_E2M1X2, NK_E2M1X2}, {NK_F16, NK_E2M1X2}, {NK_F16, NK_F16}};
    for (int i = 0; i < 3; i++) {
        const nk_gemm_problem p = {.a.dtype = types[i][0], .b.dtype = types[i][1]};
        if (f->kernel(&(gemm_desc){.op = op, .gemm = &p, .activation = activation}, tile)) return true;
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
        if (gemm_has_kernel(f, op, NULL, tile)) info->operators[count++] = names[op];
    if (gemm_has_kernel(f, GEMM_GROUPED, &(nk_activation){0}, tile)) info->operators[count] = "activated_grouped_gemm";
}
