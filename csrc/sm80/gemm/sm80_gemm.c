/* The sm80 GEMM family: its tile configurations, what they cost, and its launches. A launch takes up to 32 groups of a
 * list, or one problem; where its K steps are divided among CTAs (stream-K), a second kernel adds the partial sums. */
#include "gemm/gemm_family.h"
#include "sm80/gemv/sm80_gemv_plan.h"

#include "cuda/cuda_groups.h"
#include "sm80_gemm_config.h"
#include "sm80_gemm_costs.h"
#include "sm80_gemm_params.h"

_Static_assert(sizeof(cuda_groups) <= CUDA_MAX_PARAM_BYTES, "the groups of a launch are its parameters");
_Static_assert(CUDA_GROUPS_PER_LAUNCH == GEMM_MEMBERS, "one launch takes all members of a description");

static const gemm_config configs[SM80_GEMM_TILE_COUNT] = {
#define CONFIG(name, tokens, warps, pipeline_stages, ctas) \
    [SM80_GEMM_##name] = {.tile_m = tokens,                \
                          .tile_n = 32 * (warps),          \
                          .stages = pipeline_stages,       \
                          .warpgroups = warps,             \
                          .ctas_per_sm = ctas},
    SM80_GEMM_TILES(CONFIG)
#undef CONFIG
};

/* By operator, tile and operand types; behind these, of stream-K, the kernel that adds partial sums. */
#define REDUCE SM80_GEMM_KIND_COUNT
typedef cuda_kernel *kernels_of_tile[REDUCE + 1];

#define FP4(op, name)                                                                               \
    [SM80_GEMM_NVFP4] = &sm80_##op##_##name##_nvfp4, [SM80_GEMM_FP16] = &sm80_##op##_##name##_fp16, \
    [SM80_GEMM_BF16] = &sm80_##op##_##name##_bf16
#define OF_GEMM(name, ...) [SM80_GEMM_##name] = {FP4(gemm, name), [REDUCE] = &sm80_gemm_##name##_reduce},
#define OF_DUAL(name, ...) [SM80_GEMM_##name] = {FP4(dual_gemm, name), [REDUCE] = &sm80_dual_gemm_##name##_reduce},
#define ALL(op, name)                                                         \
    FP4(op, name), [SM80_GEMM_PLAIN_FP16] = &sm80_##op##_##name##_plain_fp16, \
                   [SM80_GEMM_PLAIN_BF16] = &sm80_##op##_##name##_plain_bf16
#define OF_GROUPED(name, ...) \
    [SM80_GEMM_##name] = {ALL(grouped_gemm, name), [REDUCE] = &sm80_grouped_gemm_##name##_reduce},
#define OF_ACTIVATED(name, ...) [SM80_GEMM_##name] = {ALL(activated_grouped_gemm, name)},
#define OF_GATED(name, ...) [SM80_GEMM_##name] = {FP4(grouped_dual_gemm, name)},
static const kernels_of_tile of_gemm[SM80_GEMM_TILE_COUNT] = {SM80_GEMM_TILES(OF_GEMM)},
                             of_dual[SM80_GEMM_TILE_COUNT] = {SM80_GEMM_TILES(OF_DUAL)},
                             of_grouped[SM80_GEMM_TILE_COUNT] = {SM80_GEMM_TILES(OF_GROUPED)},
                             of_activated[SM80_GEMM_TILE_COUNT] = {SM80_T32_TILE(OF_ACTIVATED)},
                             of_gated[SM80_GEMM_TILE_COUNT] = {SM80_T32_TILE(OF_GATED)};
static const kernels_of_tile *const kernels[GEMM_OPERATORS] = {[GEMM] = of_gemm,
                                                               [GEMM_DUAL] = of_dual,
                                                               [GEMM_GROUPED] = of_grouped,
                                                               [GEMM_GROUPED_DUAL] = of_gated,
                                                               [GEMM_LIST] = of_grouped};

static int sm80_kind_of(const nk_gemm_problem *p)
{
    const bool bfloat = p->a.dtype == NK_BF16;
    if (p->b.dtype != NK_E2M1X2) return bfloat ? SM80_GEMM_PLAIN_BF16 : SM80_GEMM_PLAIN_FP16;
    return p->a.dtype == NK_E2M1X2 ? SM80_GEMM_NVFP4 : bfloat ? SM80_GEMM_BF16 : SM80_GEMM_FP16;
}

static cuda_kernel *sm80_kernel_of(const gemm_desc *d, int config)
{
    const kernels_of_tile *of_operator = d->activation && d->op != GEMM_GROUPED_DUAL ? of_activated : kernels[d->op];
    return of_operator[config][sm80_kind_of(d->gemm)];
}

static bool sm80_in_one_launch(const nk_gemm_problem *member, const nk_gemm_problem *first)
{
    return sm80_kind_of(member) == sm80_kind_of(first);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Tiles and K steps                                                                                                */
/* ---------------------------------------------------------------------------------------------------------------- */

static int32_t sm80_smem_bytes(const gemm_config *t, int kind)
{
    return SM80_GEMM_SMEM(t->tile_m, t->warpgroups, t->stages, kind);
}

/* With what is static. */
static int32_t sm80_cta_smem_bytes(const gemm_config *t, int kind)
{
    return sm80_smem_bytes(t, kind) + SM80_GEMM_STATIC_BYTES;
}

/* Of a tile; K of 0 counts as one step, of zeros. */
static int64_t sm80_k_steps(const nk_gemm_problem *p)
{
    const int64_t steps = nk_ceil_div(p->k, SM80_GEMM_STEP(sm80_kind_of(p)));
    return steps ? steps : 1;
}

/* What there is to do with one configuration. */
typedef struct amount {
    int64_t tiles, steps; /* steps: of all tiles together */
} amount;

static amount sm80_amount_of(const gemm_desc *d, const gemm_config *t)
{
    amount all = {0, 0};
    for (int i = 0; i < d->count; i++) {
        const nk_gemm_problem *p = d->members[i];
        const int64_t m_tiles = d->experts ? gemm_even_m_tiles(d, t->tile_m) : p->l * nk_ceil_div(p->m, t->tile_m);
        const int64_t tiles = m_tiles * gemm_n_tiles(d, t, p->n);
        all.tiles += tiles;
        all.steps += tiles * sm80_k_steps(p);
    }
    return all;
}

/* Of stream-K with so many CTAs per SM; 0: a tile for each CTA. */
static int64_t sm80_steps_per_cta(amount all, int per_sm, const cuda_gpu *gpu)
{
    return per_sm ? nk_ceil_div(all.steps, per_sm * gpu->sms) : 0;
}

static int sm80_resident_ctas(const gemm_config *t, int kind, const cuda_gpu *gpu)
{
    const int fit = cuda_ctas_per_sm(gpu, sm80_cta_smem_bytes(t, kind));
    return fit < t->ctas_per_sm ? (fit < 1 ? 1 : fit) : t->ctas_per_sm;
}

/* Bytes of a tile's partial sums. */
static int64_t sm80_partial_bytes(const gemm_config *t) { return (int64_t)t->tile_m * t->tile_n * 4; }

/* ---------------------------------------------------------------------------------------------------------------- */
/* Choice                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* With stream-K a row's sums depend on how many tiles there are. Gated and activated experts have no kernels of it:
 * every expert has some tiles. */
static bool is_batch_invariant(const gemm_desc *d, bool asked)
{
    return asked || d->op == GEMM_GROUPED_DUAL || d->activation;
}

#define MOST_STEPS INT32_MAX /* kernels count steps in 32 bits */
#define LEAST_STEPS_PER_CTA 2

static const char *sm80_why_not_config(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    const gemm_config *t = &configs[c->config];
    const int kind = sm80_kind_of(d->gemm);
    if (sm80_cta_smem_bytes(t, kind) > q->gpu->smem_per_cta) return GEMM_NO_SMEM;
    if (c->schedule == 0) return NULL;
    const amount all = sm80_amount_of(d, t);
    const bool serves = !is_batch_invariant(d, q->batch_invariant) && all.tiles > 0 && all.steps <= MOST_STEPS &&
                        c->schedule <= sm80_resident_ctas(t, kind, q->gpu) &&
                        sm80_steps_per_cta(all, c->schedule, q->gpu) >= LEAST_STEPS_PER_CTA;
    return serves ? NULL : gemm_no_schedule;
}

/* One K step on an SM with `resident` such CTAs. */
static double sm80_step_us(const gemm_config *t, int64_t resident)
{
    const double rows = t->tile_n, tokens = t->tile_m;
    const double compute = tokens * rows * SM80_GEMM_STEP(SM80_GEMM_NVFP4) * 2 * (1 / SM80_GEMM_FLOP_PER_US) +
                           SM80_GEMM_DECODE_US * rows * (1.0 / 128);
    const double memory = (tokens + rows) * 72 * (1 / SM80_GEMM_BYTES_PER_US); /* codes and scale factors */
    const double busy = (compute > memory ? compute : memory) * (double)resident;
    const double alone = (SM80_GEMM_LONE_STEP_US + SM80_GEMM_LONE_TOKEN_US * tokens) *
                         (1 + SM80_GEMM_NEIGHBOUR * (double)(resident - 1));
    return busy > alone ? busy : alone;
}

static double sm80_us_of(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    const gemm_config *t = &configs[c->config];
    const amount all = sm80_amount_of(d, t);
    if (all.tiles == 0) return 0;
    const int64_t resident = sm80_resident_ctas(t, sm80_kind_of(d->gemm), q->gpu), at_once = resident * q->gpu->sms;
    const double steps = (double)all.steps / (double)all.tiles; /* of a tile, on average */
    const int64_t per_cta = sm80_steps_per_cta(all, c->schedule, q->gpu);
    if (!per_cta) {
        const int64_t waves = nk_ceil_div(all.tiles, at_once);
        const int64_t crowd = all.tiles < at_once ? nk_ceil_div(all.tiles, q->gpu->sms) : resident;
        return (double)waves * (steps * sm80_step_us(t, crowd) + SM80_GEMM_CTA_US);
    }
    const bool aligned = per_cta * nk_ceil_div((int64_t)steps, per_cta) * all.tiles == all.steps;
    const double more = aligned ? 0 : 1 + (double)(per_cta - LEAST_STEPS_PER_CTA) / steps; /* tiles after the first */
    const double sums = (double)all.steps / (double)per_cta * (aligned ? 1 : 2) * (double)sm80_partial_bytes(t);
    const double cta = (double)per_cta * sm80_step_us(t, c->schedule) + SM80_GEMM_CTA_US + more * SM80_GEMM_PART_US;
    return cta + SM80_GEMM_REDUCE_US + sums * (1 / SM80_GEMM_SUM_BYTES_PER_US);
}

/* Experts: the grid is for any offsets. Without stream-K a CTA for each tile that there may be, else enough for the
 * GPU.
 */
static void sm80_derive(const gemm_desc *d, const gemm_query *q, gemm_launch *c)
{
    const gemm_config *t = &configs[c->config];
    const amount all = sm80_amount_of(d, t);
    nk_plan *plan = &c->plan;
    int64_t tiles = all.tiles;
    plan->steps_per_cta = sm80_steps_per_cta(all, c->schedule, q->gpu);
    if (d->experts) {
        tiles = gemm_m_tiles(d, t->tile_m) * gemm_n_tiles(d, t, d->gemm->n);
        if (tiles * sm80_k_steps(d->gemm) > MOST_STEPS) plan->steps_per_cta = 0;
    }
    plan->grid = plan->steps_per_cta ? nk_ceil_div(all.steps, plan->steps_per_cta) : tiles;
    plan->workspace_bytes = plan->steps_per_cta ? 2 * plan->grid * sm80_partial_bytes(t) : 0;
    plan->threads = 32 * t->warpgroups;
    plan->tile_n = gemm_features(d, t);
    plan->tile_k = SM80_GEMM_STEP(sm80_kind_of(d->gemm));
    plan->batch_invariant = is_batch_invariant(d, q->batch_invariant);
    plan->why = plan->steps_per_cta
                    ? "stream-K: all K steps are divided evenly among CTAs; a second kernel adds partial sums"
                    : "a tile for each CTA";
    c->smem_bytes = sm80_smem_bytes(t, sm80_kind_of(d->gemm));
    c->overlap = false; /* it would have to wait */
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Launch                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

_Static_assert(sizeof(nk_gemm_problem) == 296, "copy() names every field");

/* Field by field: copied as one, compilers for x86 take `rep movs`, which is slow to begin. */
static void copy(const nk_gemm_problem *from, nk_gemm_problem *to)
{
    to->device = from->device;
    to->l = from->l;
    to->m = from->m;
    to->n = from->n;
    to->k = from->k;
    to->a = from->a;
    to->b = from->b;
    to->d = from->d;
    to->alpha = from->alpha;
    to->bias = from->bias;
    to->row_scale = from->row_scale;
}

/* Numbers the iterations of all groups: K steps, or without stream-K tiles. */
static void sm80_fill_groups(const gemm_desc *d, const gemm_launch *c, float *partials, cuda_groups *q)
{
    const gemm_config *t = &configs[c->config];
    int64_t iters = 0;
    for (int i = 0; i < d->count; i++) {
        cuda_group *g = &q->group[i];
        copy(d->members[i], &g->gemm);
        g->first_iter = (uint32_t)iters;
        g->k_steps = (uint32_t)sm80_k_steps(&g->gemm);
        g->iters_per_tile = c->plan.steps_per_cta ? g->k_steps : 1;
        iters += nk_ceil_div(g->gemm.m, t->tile_m) * gemm_n_tiles(d, t, g->gemm.n) * g->iters_per_tile;
    }
    q->ctas = (uint32_t)c->plan.grid;
    q->iters = (uint32_t)iters;
    q->count = d->count;
    q->offsets = d->experts ? d->experts->offsets : NULL;
    q->experts = gemm_experts(d);
    q->a_sf_bytes = d->experts ? d->experts->a_sf_bytes : 0;
    q->rows = d->experts ? d->experts->rows : (nk_token_rows){0};
    q->partials = partials;
}

static sm80_gemm_scheduler sm80_scheduler_of(const gemm_desc *d, const gemm_launch *c, float *partials)
{
    const gemm_config *t = &configs[c->config];
    const nk_gemm_problem *p = d->gemm;
    const uint32_t steps = (uint32_t)sm80_k_steps(p), m_tiles = (uint32_t)nk_ceil_div(p->m, t->tile_m),
                   of_n = (uint32_t)gemm_n_tiles(d, t, p->n);
    return (sm80_gemm_scheduler){.m_tiles = m_tiles,
                                 .n_tiles = of_n,
                                 .tiles = (uint32_t)p->l * m_tiles * of_n,
                                 .k_steps = steps,
                                 .iters_per_tile = c->plan.steps_per_cta ? steps : 1,
                                 .iters_per_cta = c->plan.steps_per_cta ? (uint32_t)c->plan.steps_per_cta : 1,
                                 .partials = partials};
}

static nk_status sm80_launch_both(const gemm_desc *d, const gemm_launch *c, int32_t reduce_smem, void *const args[],
                                  const nk_exec *exec)
{
    const cuda_grid reduce = {.x = (c->plan.grid - 1) * (configs[c->config].tile_m / 8),
                              .threads = c->plan.threads,
                              .smem_bytes = reduce_smem,
                              .overlap = c->pdl != NK_PDL_OFF};
    NK_TRY(gemm_launch_kernel(d, c, args, exec));
    if (!c->plan.steps_per_cta || reduce.x == 0) return NK_OK;
    return cuda_launch(kernels[d->op][c->config][REDUCE], d->gemm->device, exec->stream, &reduce, args);
}

static nk_status sm80_launch(const gemm_desc *d, const gemm_launch *c, const nk_exec *exec)
{
    if (d->op == GEMM || d->op == GEMM_DUAL) {
        sm80_gemm_scheduler scheduler = sm80_scheduler_of(d, c, exec->workspace);
        return sm80_launch_both(d, c, 0, (void *[]){(void *)(uintptr_t)d->params, &scheduler}, exec);
    }
    cuda_groups groups;
    sm80_gating gating = {0};
    if (d->gated) {
        const gemm_gated *g = d->gated;
        gating = (sm80_gating){g->b2, g->alpha2, g->bias2, g->activation, g->encoded};
    } else if (d->activation) {
        gating.activation = *d->activation;
        if (d->experts) gating.encoded = d->experts->encoded;
    }
    sm80_fill_groups(d, c, exec->workspace, &groups);
    return sm80_launch_both(d, c, CUDA_EXPERT_SCAN_BYTES, (void *[]){&groups, &gating}, exec);
}

GEMM_FAMILY(sm80, gemm, NULL, SM80_GEMM_TILES, .schedules = 4, /* up to three CTAs per SM, as the table says */
            .invariant = NK_TILE_ANY, .kernel = sm80_kernel_of, .why_not_config = sm80_why_not_config, .us = sm80_us_of,
            .derive = sm80_derive, .launch = sm80_launch, .in_one_launch = sm80_in_one_launch);

/* ---------------------------------------------------------------------------------------------------------------- */
/* The row                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

static const gemm_family *sm80_family_of(const gemm_desc *d) { return (void)d, &sm80_gemm; }

/* One token is the gemv's, but for batch-invariant calls: it adds in another order. */
static nk_status sm80_row_plan_gemv(const gemm_desc *d, const nk_settings *settings, nk_plan *plan, void *choice,
                                    double *us)
{
    if (d->op != GEMM || d->gemm->m != 1 || settings->batch_invariant) return NK_DECLINED;
    *us = 0;
    return sm80_plan_gemv(d->gemm, settings, plan, choice);
}

static nk_status sm80_row_run_gemv(const gemm_desc *d, const void *choice, const nk_exec *exec)
{
    return sm80_run_gemv(d->gemm, choice, exec);
}

static const gemm_row sm80_gemm_row = {
    .family = sm80_family_of, .plan_gemv = sm80_row_plan_gemv, .run_gemv = sm80_row_run_gemv, .is_last = true};
GEMM_CELLS(sm80)
