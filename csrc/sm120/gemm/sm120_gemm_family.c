/* What both sm120 GEMM families do: how many tiles there are, what they cost, their launches. */
#include "sm120_gemm_family.h"

#include "cuda/cuda_groups.h"
#include "cuda/cuda_route.h"
#include "sm120_gemm_config.h"
#include "sm120_gemm_costs.h"
#include "sm120_gemm_params.h"

#define CODE_BYTES (1.0 / 2 + 1.0 / NK_SF_VEC) /* of an NVFP4 element, with its share of a scale factor */

static const sm120_mainloop *mainloop_of(const gemm_query *q) { return q->family->mainloop; }

static int32_t smem_bytes_of(const gemm_query *q, const gemm_config *t)
{
    return mainloop_of(q)->smem_bytes(t->tile_m, t->stages);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Choice                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

const char *sm120_why_not(const gemm_desc *d, const gemm_query *q)
{
    (void)q;
    return d->gemm->b.dtype == NK_E2M1X2 ? gemm_why_not_sizes(d) : GEMM_NOT_NVFP4("weights");
}

int64_t sm120_tiles(const gemm_desc *d, const gemm_config *t)
{
    int64_t tiles = 0;
    for (int i = 0; i < d->count; i++) {
        const nk_gemm_problem *p = d->members[i];
        const int64_t m_tiles = d->experts ? gemm_m_tiles(d, t->tile_m) : p->l * nk_ceil_div(p->m, t->tile_m);
        const int64_t n_tiles = gemm_n_tiles(d, t, p->n);
        if (n_tiles && m_tiles > GEMM_LARGEST / n_tiles) return GEMM_LARGEST + 1;
        tiles += m_tiles * n_tiles;
    }
    return tiles;
}

static int64_t resident_ctas(const gemm_query *q, const gemm_config *t)
{
    const int64_t fit = cuda_ctas_per_sm(q->gpu, smem_bytes_of(q, t));
    return fit < t->ctas_per_sm ? (fit < 1 ? 1 : fit) : t->ctas_per_sm;
}

/* CTAs that share K of a tile. */
static int64_t parts_of(int schedule) { return schedule + 1; }

/* All parts run at once, so that partial sums are few enough for L2. */
static bool may_divide(const gemm_desc *d, const gemm_query *q, const gemm_config *t, int64_t parts)
{
    return (d->op == GEMM || d->op == GEMM_DUAL) && !q->batch_invariant &&
           parts <= nk_ceil_div(d->gemm->k, t->tile_k) &&
           sm120_tiles(d, t) * parts <= resident_ctas(q, t) * q->gpu->sms;
}

const char *sm120_why_not_config(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    const gemm_config *t = &q->family->configs[c->config];
    if (smem_bytes_of(q, t) > q->gpu->smem_per_cta) return GEMM_NO_SMEM;
    if (sm120_tiles(d, t) > GEMM_LARGEST) return GEMM_TOO_LARGE;
    return c->schedule == 0 || may_divide(d, q, t, parts_of(c->schedule)) ? NULL : gemm_no_schedule;
}

static double token_bytes(const gemm_desc *d) { return d->gemm->a.dtype == NK_E2M1X2 ? CODE_BYTES : 2; }

/* A step of a CTA that has `resident` on its SM: its MMAs and decoding, its bytes out of L2, or what the pipeline does
 * not hide. */
static double step_cycles(const gemm_desc *d, const sm120_mainloop *of, const gemm_config *t, double resident)
{
    const double mmas = t->tile_n / 16.0 * t->tile_m / 8 * t->tile_k / of->mma_k;
    const double bytes = (t->tile_n * CODE_BYTES + t->tile_m * token_bytes(d)) * t->tile_k;
    const double issued = mmas * of->mma_cycles / 4 + t->warpgroups * of->decode_cycles;
    const double busy = nk_larger(issued, bytes / SM120_GEMM_L2_BYTES_PER_CYCLE) * resident;
    return nk_larger(busy, SM120_GEMM_LATENCY_CYCLES / (t->stages - 1));
}

static int64_t partial_bytes(const gemm_config *t) { return (int64_t)t->tile_m * t->tile_n * 4; }

/* Of a divided tile: a part's sums on their way to L2, and those of all parts back. */
static double fix_up_cycles(const gemm_config *t, int64_t parts)
{
    if (parts == 1) return 0;
    return (double)((1 + parts) * partial_bytes(t)) / SM120_GEMM_L2_BYTES_PER_CYCLE + SM120_GEMM_FIX_UP_CYCLES;
}

double sm120_us(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    const gemm_config *t = &q->family->configs[c->config];
    const int64_t most = resident_ctas(q, t), parts = parts_of(c->schedule);
    double steps = 0, bytes = 0;
    int64_t tiles = 0;
    for (int i = 0; i < d->count; i++) {
        const nk_gemm_problem *p = d->members[i];
        const int64_t m_tiles = d->experts ? gemm_even_m_tiles(d, t->tile_m) : p->l * nk_ceil_div(p->m, t->tile_m);
        const int64_t some = m_tiles * gemm_n_tiles(d, t, p->n);
        const double weights = (double)gemm_weight_batches(d) * (double)p->n * gemm_matrices(d);
        const double tokens = (double)(d->experts ? gemm_expected_m(d) : p->l * p->m);
        tiles += some;
        steps += (double)some * (double)nk_ceil_div(p->k, t->tile_k);
        bytes += (weights * CODE_BYTES + tokens * token_bytes(d)) * (double)p->k;
    }
    if (tiles == 0) return 0;
    const int64_t crowd = nk_ceil_div(tiles * parts, q->gpu->sms), resident = crowd < most ? crowd : most;
    const double waves = (double)nk_ceil_div(tiles * parts, resident * q->gpu->sms);
    const double of_tile = steps / (double)tiles, of_cta = parts > 1 ? ceil(of_tile / (double)parts) : of_tile;
    const double cta = of_cta * step_cycles(d, mainloop_of(q), t, (double)resident) + SM120_GEMM_CTA_CYCLES +
                       t->tile_m * SM120_GEMM_TOKEN_CYCLES * (double)resident;
    const double memory = bytes / (SM120_GEMM_MEMORY_BYTES_PER_US / SM120_GEMM_SMS * q->gpu->sms);
    const double both = nk_larger(waves * cta / SM120_GEMM_CYCLES_PER_US,
                                  memory + SM120_GEMM_CTA_CYCLES / SM120_GEMM_CYCLES_PER_US);
    return both + fix_up_cycles(t, parts) / SM120_GEMM_CYCLES_PER_US;
}

static const gemm_config *config_of(const gemm_launch *c) { return &c->family->configs[c->config]; }

void sm120_derive(const gemm_desc *d, const gemm_query *q, gemm_launch *c)
{
    const gemm_config *t = config_of(c);
    /* All tiles add alike, but a gemv does not, nor do parts of K. */
    const bool has_others = d->op == GEMM || (d->op == GEMM_DUAL && q->family->schedules > 1);
    const int64_t tiles = sm120_tiles(d, t), parts = parts_of(c->schedule);
    c->plan.grid = tiles * parts;
    c->plan.threads = SM120_GEMM_THREADS(t->warpgroups);
    c->plan.tile_n = gemm_features(d, t);
    c->plan.batch_invariant = !has_others || q->batch_invariant;
    c->plan.why = "a tile for each CTA";
    if (parts > 1) {
        c->plan.why = "tiles are few: K of each is divided among CTAs, and the last to end adds their sums in order";
        c->plan.split = (int32_t)parts;
        c->plan.workspace_bytes = tiles * (parts * partial_bytes(t) + (int64_t)sizeof(uint64_t));
    }
    c->smem_bytes = smem_bytes_of(q, t);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Launch                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

static void fill_groups(const gemm_desc *d, const gemm_launch *c, cuda_groups *q)
{
    const gemm_config *t = config_of(c);
    uint32_t tiles = 0;
    for (int i = 0; i < d->count; i++) {
        const nk_gemm_problem *p = d->members[i];
        q->group[i] = (cuda_group){.gemm = *p, .first_iter = tiles, .k_steps = 1, .iters_per_tile = 1};
        tiles += (uint32_t)(nk_ceil_div(p->m, t->tile_m) * gemm_n_tiles(d, t, p->n));
    }
    q->ctas = (uint32_t)c->plan.grid;
    q->iters = tiles;
    q->count = d->count;
    q->partials = NULL;
    q->experts = gemm_experts(d);
    q->offsets = d->experts ? d->experts->offsets : NULL;
    q->a_sf_bytes = d->experts ? d->experts->a_sf_bytes : 0;
    q->rows = d->experts ? d->experts->rows : (nk_token_rows){0};
}

static sm120_split split_of(const gemm_launch *c, const nk_exec *exec)
{
    if (c->schedule == 0) return (sm120_split){.parts = 1};
    return (sm120_split){
        .partials = exec->workspace,
        .counters = (uint64_t *)((uint8_t *)exec->workspace + c->plan.grid * partial_bytes(config_of(c))),
        .base = cuda_counter_base(),
        .parts = (uint32_t)parts_of(c->schedule)};
}

nk_status sm120_launch(const gemm_desc *d, const gemm_launch *c, const nk_exec *exec)
{
    if (d->op == GEMM || d->op == GEMM_DUAL) {
        const gemm_config *t = config_of(c);
        sm120_split split = split_of(c, exec);
        sm120_gemm_scheduler scheduler = {.m_tiles = (uint32_t)nk_ceil_div(d->gemm->m, t->tile_m),
                                          .n_tiles = (uint32_t)gemm_n_tiles(d, t, d->gemm->n),
                                          .tiles = (uint32_t)c->plan.grid / split.parts};
        return gemm_launch_kernel(d, c, (void *[]){(void *)(uintptr_t)d->params, &scheduler, &split}, exec);
    }
    cuda_groups groups;
    sm120_gating gating = {0};
    if (d->gated) gating = (sm120_gating){d->gated->b2, d->gated->alpha2, d->gated->bias2, d->gated->activation};
    fill_groups(d, c, &groups);
    return gemm_launch_kernel(d, c, (void *[]){&groups, &gating}, exec);
}
