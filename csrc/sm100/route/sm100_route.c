/* route on Blackwell: chooses a tile, and among how many CTAs a cluster divides K, by cost; launches. What tensor cores
 * do not serve goes to sm100_route_fma.h. */
#include "sm100/sm100_backend.h"

#include "cuda/cuda_route_plan.h"
#include "cuda/cuda_route_sort.h"
#include "nk_format.h"
#include "sm100_route_config.h"
#include "sm100_route_costs.h"
#include "sm100_route_fma.h"

typedef struct sm100_route_tile {
    int32_t tokens;
    bool tokens_on_lanes;
} sm100_route_tile;

static const sm100_route_tile tiles[SM100_ROUTE_TILE_COUNT] = {
#define ROW(name, ...) [SM100_ROUTE_##name] = {__VA_ARGS__},
    SM100_ROUTE_TILES(ROW)
#undef ROW
};

#define NAME(name, ...) #name,
const nk_family sm100_route_family = {"sm100", "route", (const char *const[]){SM100_ROUTE_TILES(NAME) NULL}, NULL};

#define SMEM_MOST (227 * 1024)

/* A tile, and how its clusters divide the work. */
typedef struct sm100_route_candidate {
    int tile;
    sm100_route_work work;
    int64_t clusters;
    double us;
} sm100_route_candidate;

static int32_t sm100_route_cluster_of(const sm100_route_work *work) { return work->expert_tiles * work->parts; }

static int32_t sm100_route_columns_of(const sm100_route_work *work)
{
    return work->tokens_on_lanes ? work->experts : work->tokens;
}

static int32_t sm100_route_smem_bytes(const sm100_route_work *work)
{
    return work->barriers_at + SM100_ROUTE_BARRIER_BYTES;
}

/* Whether threads can select: few experts of few groups, and nothing else that each has to write. */
static bool threads_can_route(const nk_route_problem *p)
{
    const bool few_groups = p->topk_group >= p->n_group || p->n_group <= SM100_ROUTE_THREAD_GROUPS;
    return p->top_k <= SM100_ROUTE_THREAD_SELECTS && few_groups && !p->returns_logits;
}

/* A power of two, of 32 or more. */
static int32_t tmem_columns(int32_t columns)
{
    int32_t allocated = 32;
    while (allocated < columns)
        allocated *= 2;
    return allocated;
}

/* fp16 or bf16 times the same, sums in fp32 (PTX ISA, 9.7.16.4.2). */
static uint32_t sm100_route_instruction_of(nk_dtype dtype, int32_t columns)
{
    const uint32_t bfloats = dtype == NK_BF16;
    return 1u << 4 | bfloats << 7 | bfloats << 10 | (uint32_t)columns / 8 << 17 | SM100_ROUTE_LANES / 16 << 24;
}

/* A cluster's work, but for the parts of K. */
static sm100_route_work sm100_route_work_of(const nk_route_problem *p, const sm100_route_tile *t, nk_pdl pdl)
{
    const int32_t n = (int32_t)p->n, experts = t->tokens_on_lanes ? (n + 15) / 16 * 16 : SM100_ROUTE_LANES;
    sm100_route_work work = {.tokens_on_lanes = t->tokens_on_lanes,
                             .by_thread = t->tokens_on_lanes && threads_can_route(p),
                             .tokens = t->tokens,
                             .experts = experts,
                             .expert_tiles = (int32_t)nk_ceil_div(n, experts),
                             .parts = 1,
                             .steps = (int32_t)nk_ceil_div(p->k, SM100_ROUTE_STEP),
                             .scratch_at = 4 * t->tokens * SM100_ROUTE_PITCH(experts),
                             .scratch_experts = ROUTE_SCRATCH_EXPERTS(n)};
    const int32_t columns = sm100_route_columns_of(&work), stage = SM100_ROUTE_STAGE_BYTES(columns);
    const int32_t fitting = (SMEM_MOST - SM100_ROUTE_BARRIER_BYTES) / stage;
    const int32_t scratch =
        work.by_thread ? SM100_ROUTE_THREAD_BYTES : SM100_ROUTE_WARPS * ROUTE_SCRATCH_BYTES(work.scratch_experts);
    work.stages = fitting < SM100_ROUTE_MOST_STAGES ? fitting : SM100_ROUTE_MOST_STAGES;
    work.barriers_at = (int32_t)nk_larger(work.stages * stage, work.scratch_at + scratch);
    work.early = pdl == NK_PDL_WEIGHTS ? work.stages : 0;
    work.tmem_columns = tmem_columns(columns);
    work.instruction = sm100_route_instruction_of(p->x.dtype, columns);
    return work;
}

/* The longer of a CTA's loads and products, then its share of the tokens. */
static double sm100_route_us_of(const nk_route_problem *p, const sm100_route_candidate *c, const cuda_gpu *gpu)
{
    const sm100_route_work *work = &c->work;
    const int32_t columns = sm100_route_columns_of(work), cluster = sm100_route_cluster_of(work);
    const int32_t at_once = gpu->sms / cluster > 0 ? gpu->sms / cluster : 1;
    const double waves = (double)nk_ceil_div(c->clusters, at_once);
    const double step =
        nk_larger(SM100_ROUTE_STAGE_BYTES(columns) / SM100_ROUTE_BYTES_PER_CYCLE, columns * SM100_ROUTE_COLUMN_CYCLES);
    const int64_t tokens = p->m < work->tokens ? p->m : work->tokens;
    double cycles = SM100_ROUTE_FILL_CYCLES + (double)nk_ceil_div(work->steps, work->parts) * step;
    if (work->by_thread) return waves * (cycles + (double)p->n * SM100_ROUTE_THREAD_CYCLES) / SM100_ROUTE_CYCLES_PER_US;
    const int64_t share = nk_ceil_div(tokens, cluster), turns = nk_ceil_div(share, SM100_ROUTE_WARPS);
    const double sums = (double)share * work->parts * work->expert_tiles * work->experts * 4;
    if (cluster > 1) cycles += SM100_ROUTE_MEET_CYCLES + sums / SM100_ROUTE_PEER_BYTES_PER_CYCLE;
    return waves * (cycles + (double)turns * SM100_ROUTE_TURN_CYCLES) / SM100_ROUTE_CYCLES_PER_US;
}

/* Considers one tile; where `invariant`, sums may not depend on M, so one CTA adds all of K. */
static void sm100_route_consider(const nk_route_problem *p, const cuda_gpu *gpu, int index, const nk_settings *settings,
                                 sm100_route_candidate *best)
{
    sm100_route_candidate c = {.tile = index, .work = sm100_route_work_of(p, &tiles[index], settings->pdl)};
    c.clusters = nk_ceil_div(p->m, c.work.tokens);
    const bool alone = settings->batch_invariant || c.work.tokens_on_lanes;
    const int32_t most = alone ? 1 : SM100_ROUTE_MOST_CLUSTER / c.work.expert_tiles;
    for (int32_t parts = 1; parts <= most && parts <= c.work.steps; parts++) {
        c.work.parts = parts;
        c.us = sm100_route_us_of(p, &c, gpu);
        if (best->tile < 0 || c.us < best->us) *best = c;
    }
}

/* Why this tile cannot, where others may. */
static const char *sm100_route_why_not_tile(const nk_route_problem *p, const cuda_gpu *gpu, int index)
{
    const sm100_route_tile *t = &tiles[index];
    if (t->tokens_on_lanes && p->n > SM100_ROUTE_MOST_COLUMNS) return "it takes up to 256 experts";
    const sm100_route_work work = sm100_route_work_of(p, t, NK_PDL_SAFE);
    return sm100_route_smem_bytes(&work) > gpu->smem_per_cta ? "its CTAs do not fit into shared memory" : NULL;
}

/* The fastest tile that can serve the problem, or none. With batch_invariant there is one: the same
 * instructions then make a row, whatever the others are. */
static nk_status sm100_route_choose(const nk_route_problem *p, const cuda_gpu *gpu, const nk_settings *settings,
                                    sm100_route_candidate *best)
{
    const int forced = nk_tile_forced(settings, &sm100_route_family);
    const char *why_not = NULL, *why = p->from_logits ? "given logits need no tensor cores"
                                                      : cuda_route_why_no_map(p, settings->batch_invariant);
    *best = (sm100_route_candidate){.tile = NK_TILE_ANY};
    for (int i = 0; i < SM100_ROUTE_TILE_COUNT && !why; i++) {
        if (forced != NK_TILE_ANY && i != forced) continue;
        why_not = sm100_route_why_not_tile(p, gpu, i);
        if (!why_not) sm100_route_consider(p, gpu, i, settings, best);
        if (settings->batch_invariant) break;
    }
    if (best->tile != NK_TILE_ANY) return NK_OK;
    if (!why) why = why_not;
    return forced != NK_TILE_ANY ? NK_TILE_REFUSE(&sm100_route_family, forced, "%s", why) : NK_OK;
}

typedef struct sm100_route_choice {
    bool by_tile; /* else `fma` says how */
    sm100_route_work work;
    cuda_grid grid;
    sm100_route_fma_choice fma;
    int64_t sorters; /* CTAs of the permutation */
    bool overlap;
} sm100_route_choice;

NK_CHOICE_FITS(sm100_route_choice);

nk_status sm100_plan_route(const nk_route_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    sm100_route_choice *r = choice;
    const cuda_gpu *gpu = NULL;
    sm100_route_candidate c;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    NK_TRY(sm100_route_choose(p, gpu, settings, &c));
    r->by_tile = c.tile != NK_TILE_ANY;
    r->sorters = cuda_sort_ctas(p->m * p->top_k, gpu->sms);
    r->overlap = settings->pdl != NK_PDL_OFF;
    if (!r->by_tile) return sm100_plan_route_fma(p, gpu, settings, plan, &r->fma);
    r->work = c.work;
    r->grid = (cuda_grid){.x = c.clusters * sm100_route_cluster_of(&c.work),
                          .y = 1,
                          .z = 1,
                          .threads = SM100_ROUTE_THREADS,
                          .smem_bytes = sm100_route_smem_bytes(&c.work),
                          .cluster.x = sm100_route_cluster_of(&c.work),
                          .overlap = r->overlap};
    plan->kernel = sm100_route.name;
    plan->why = c.work.by_thread ? "a thread routes the token whose logits are its lane of tensor memory"
                                 : "the CTAs of a cluster share its tokens; a warp routes a token";
    plan->tile = sm100_route_family.tiles[c.tile];
    plan->tile_m = c.work.tokens;
    plan->tile_n = c.work.experts;
    plan->tile_k = SM100_ROUTE_STEP;
    plan->grid = r->grid.x;
    plan->threads = SM100_ROUTE_THREADS;
    plan->stages = c.work.stages;
    plan->cluster = sm100_route_cluster_of(&c.work);
    plan->split = c.work.parts;
    plan->batch_invariant = settings->batch_invariant;
    return NK_OK;
}

static nk_status run_by_tile(const nk_route_problem *p, const sm100_route_choice *r, const nk_exec *exec)
{
    sm100_route_work work = r->work;
    cuda_tensor_map w, x;
    NK_TRY(cuda_route_maps(p, SM100_ROUTE_STEP, work.experts, work.tokens, (cuda_tensor_map *[]){&w, &x}));
    void *args[] = {&w, &x, (void *)(uintptr_t)p, &work};
    return cuda_launch(&sm100_route, p->device, exec->stream, &r->grid, args);
}

nk_status sm100_run_route(const nk_route_problem *p, const void *choice, const nk_exec *exec)
{
    const sm100_route_choice *r = choice;
    NK_TRY(r->by_tile ? run_by_tile(p, r, exec) : sm100_run_route_fma(p, &r->fma, exec));
    return p->sorts ? cuda_route_sort(&sm100_route_sort, p, r->sorters, r->overlap, exec) : NK_OK;
}
