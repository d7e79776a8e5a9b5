/* The sm120 GEMM family, of NVFP4 tokens: its tile configurations, what they serve and cost, and its launches. Then the
 * cells of the sm120 row of the backend table. */
#include "gemm/gemm_family.h"
#include "sm120/sm120_backend.h"

#include "cuda/cuda_groups.h"
#include "sm120_gemm_config.h"
#include "sm120_gemm_costs.h"
#include "sm120_gemm_params.h"

static const gemm_config configs[SM120_GEMM_TILE_COUNT] = {
#define CONFIG(name, tokens, warps_m, pipeline_stages, ctas) \
    [SM120_GEMM_##name] = {.tile_m = tokens,                 \
                           .tile_n = SM120_GEMM_TILE_N,      \
                           .tile_k = SM120_GEMM_STEP,        \
                           .stages = pipeline_stages,        \
                           .warpgroups = warps_m,            \
                           .ctas_per_sm = ctas},
    SM120_GEMM_TILES(CONFIG)
#undef CONFIG
};

#define OF_GEMM(name, ...) [SM120_GEMM_##name] = &sm120_gemm_##name,
#define OF_DUAL(name, ...) [SM120_GEMM_##name] = &sm120_dual_gemm_##name,
#define OF_GROUPED(name, ...) [SM120_GEMM_##name] = &sm120_grouped_gemm_##name,
#define OF_GATED(name, ...) [SM120_GEMM_##name] = &sm120_grouped_dual_gemm_##name,
static cuda_kernel *const kernels[GEMM_OPERATORS][SM120_GEMM_TILE_COUNT] = {
    [GEMM] = {SM120_GEMM_TILES(OF_GEMM)},
    [GEMM_DUAL] = {SM120_GEMM_TILES(OF_DUAL)},
    [GEMM_GROUPED] = {SM120_GEMM_TILES(OF_GROUPED)},
    [GEMM_GROUPED_DUAL] = {SM120_GEMM_TILES(OF_GATED)},
    [GEMM_LIST] = {SM120_GEMM_TILES(OF_GROUPED)},
};

static cuda_kernel *sm120_kernel_of(const gemm_desc *d, int config)
{
    return d->activation && d->op != GEMM_GROUPED_DUAL ? NULL : kernels[d->op][config];
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Choice                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

static const char *sm120_why_not(const gemm_desc *d, const gemm_query *q)
{
    (void)q;
    if (d->gemm->b.dtype != NK_E2M1X2) return GEMM_NOT_NVFP4("weights");
    if (d->gemm->a.dtype != NK_E2M1X2) return GEMM_NOT_NVFP4("tokens");
    return gemm_why_not_sizes(d);
}

static int32_t sm120_smem_bytes(const gemm_config *t) { return SM120_GEMM_SMEM(t->tile_m, t->stages); }

/* As many as any offsets of experts can need. */
static int64_t sm120_tiles(const gemm_desc *d, const gemm_config *t)
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

static const char *sm120_why_not_config(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    const gemm_config *t = &configs[c->config];
    if (sm120_smem_bytes(t) > q->gpu->smem_per_cta) return GEMM_NO_SMEM;
    return sm120_tiles(d, t) > GEMM_LARGEST ? GEMM_TOO_LARGE : NULL;
}

/* A step of a CTA that has `resident` on its SM: its MMAs, its bytes out of L2, or what the pipeline does not hide. */
static double sm120_step_cycles(const gemm_config *t, double resident)
{
    const double mmas = SM120_GEMM_TILE_N / 16.0 * t->tile_m / 8 * SM120_GEMM_STEP / SM120_GEMM_MMA_K;
    const double bytes = (SM120_GEMM_TILE_N + t->tile_m) * (SM120_GEMM_STEP / 2 + SM120_GEMM_STEP / NK_SF_VEC);
    const double busy = nk_larger(mmas * SM120_GEMM_MMA_CYCLES / 4, bytes / SM120_GEMM_L2_BYTES_PER_CYCLE) * resident;
    return nk_larger(busy, SM120_GEMM_LATENCY_CYCLES / (t->stages - 1));
}

static double sm120_us_of(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    const gemm_config *t = &configs[c->config];
    const int64_t fit = cuda_ctas_per_sm(q->gpu, sm120_smem_bytes(t));
    const int64_t most = fit < t->ctas_per_sm ? (fit < 1 ? 1 : fit) : t->ctas_per_sm;
    double steps = 0, bytes = 0;
    int64_t tiles = 0;
    for (int i = 0; i < d->count; i++) {
        const nk_gemm_problem *p = d->members[i];
        const int64_t m_tiles = d->experts ? gemm_even_m_tiles(d, t->tile_m) : p->l * nk_ceil_div(p->m, t->tile_m);
        const int64_t some = m_tiles * gemm_n_tiles(d, t, p->n);
        const double rows = (double)gemm_weight_batches(d) * (double)p->n * gemm_matrices(d) + (double)(p->l * p->m);
        tiles += some;
        steps += (double)some * (double)nk_ceil_div(p->k, SM120_GEMM_STEP);
        bytes += rows * (double)p->k * (1.0 / 2 + 1.0 / NK_SF_VEC);
    }
    if (tiles == 0) return 0;
    const int64_t crowd = nk_ceil_div(tiles, q->gpu->sms), resident = crowd < most ? crowd : most;
    const double waves = (double)nk_ceil_div(tiles, resident * q->gpu->sms);
    const double tile = steps / (double)tiles * sm120_step_cycles(t, (double)resident) + SM120_GEMM_CTA_CYCLES +
                        t->tile_m * SM120_GEMM_TOKEN_CYCLES * (double)resident;
    const double memory = bytes / (SM120_GEMM_MEMORY_BYTES_PER_US / SM120_GEMM_SMS * q->gpu->sms);
    return nk_larger(waves * tile / SM120_GEMM_CYCLES_PER_US, memory);
}

static void sm120_derive(const gemm_desc *d, const gemm_query *q, gemm_launch *c)
{
    const gemm_config *t = &configs[c->config];
    c->plan.grid = sm120_tiles(d, t);
    c->plan.threads = SM120_GEMM_THREADS(t->warpgroups);
    c->plan.tile_n = gemm_features(d, t);
    c->plan.batch_invariant = d->op != GEMM || q->batch_invariant; /* all tiles add alike, but a gemv does not */
    c->plan.why = "a tile for each CTA";
    c->smem_bytes = sm120_smem_bytes(t);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Launch                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

static void sm120_fill_groups(const gemm_desc *d, const gemm_launch *c, cuda_groups *q)
{
    const gemm_config *t = &configs[c->config];
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

static nk_status sm120_launch(const gemm_desc *d, const gemm_launch *c, const nk_exec *exec)
{
    if (d->op == GEMM || d->op == GEMM_DUAL) {
        const gemm_config *t = &configs[c->config];
        sm120_gemm_scheduler scheduler = {.m_tiles = (uint32_t)nk_ceil_div(d->gemm->m, t->tile_m),
                                          .n_tiles = (uint32_t)gemm_n_tiles(d, t, d->gemm->n),
                                          .tiles = (uint32_t)c->plan.grid};
        return gemm_launch_kernel(d, c, (void *[]){(void *)(uintptr_t)d->params, &scheduler}, exec);
    }
    cuda_groups groups;
    sm120_gating gating = {0};
    if (d->gated) gating = (sm120_gating){d->gated->b2, d->gated->alpha2, d->gated->bias2, d->gated->activation};
    sm120_fill_groups(d, c, &groups);
    return gemm_launch_kernel(d, c, (void *[]){&groups, &gating}, exec);
}

GEMM_FAMILY(sm120, gemm, NULL, SM120_GEMM_TILES, .schedules = 1, .invariant = NK_TILE_ANY, .kernel = sm120_kernel_of,
            .why_not = sm120_why_not, .why_not_config = sm120_why_not_config, .us = sm120_us_of, .derive = sm120_derive,
            .launch = sm120_launch);

/* ---------------------------------------------------------------------------------------------------------------- */
/* The row                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

static const gemm_family *sm120_family_of(const gemm_desc *d) { return (void)d, &sm120_gemm; }

/* One token is a later row's gemv's, but for batch-invariant calls: it adds in another order. */
static const char *sm120_row_why_not(const gemm_desc *d, const nk_settings *settings)
{
    const bool is_forced = nk_tile_forced(settings, &sm120_gemm_family) != NK_TILE_ANY;
    if (d->op == GEMM && d->gemm->m == 1 && !settings->batch_invariant && !is_forced)
        return "one token is a gemv, of which the row has no kernel";
    if (gemm_encodes(d)) return GEMM_NO_CODES;
    return d->list && d->list->is_activated ? GEMM_NO_ACTIVATED_LISTS : NULL;
}

static const gemm_row sm120_gemm_row = {.family = sm120_family_of, .why_not = sm120_row_why_not, .scales_rows = true};
GEMM_CELLS(sm120)
