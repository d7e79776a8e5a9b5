/* route on Hopper: chooses a tile and how many clusters share K by cost, and launches. */
#include "sm90/sm90_backend.h"

#include "cuda/cuda_route.h"
#include "cuda/cuda_route_plan.h"
#include "cuda/cuda_route_sort.h"
#include "nk_format.h"
#include "sm90_route_config.h"
#include "sm90_route_costs.h"

typedef struct sm90_route_tile_config {
    int32_t tile_m, tile_n, cluster, panels, stages, warps; /* a K tile has `panels` of SM90_ROUTE_PANEL */
} sm90_route_tile_config;

static const sm90_route_tile_config tiles[SM90_ROUTE_TILE_COUNT] = {
#define ROW(name, ...) [SM90_ROUTE_##name] = {__VA_ARGS__},
    SM90_ROUTE_TILES(ROW)
#undef ROW
};

static void sm90_route_describe(const void *of, int tile, nk_tile_info *info)
{
    (void)of;
    info->tile_m = tiles[tile].tile_m;
    info->tile_n = tiles[tile].tile_n;
}

const nk_family sm90_route_family = {"sm90", "route", NK_TILE_NAMES(SM90_ROUTE_TILES), NULL, sm90_route_describe, NULL};

#define ROW(name, ...)                                                                           \
    [SM90_ROUTE_##name] = {{&sm90_route_scored_##name##_fp16, &sm90_route_scored_##name##_bf16}, \
                           {&sm90_route_##name##_fp16, &sm90_route_##name##_bf16}},
static cuda_kernel *const kernels[SM90_ROUTE_TILE_COUNT][2][2] = {SM90_ROUTE_TILES(ROW)}; /* [tile][plain][bf16] */
#undef ROW

/* A tile, and how many clusters have the same tokens: one for each of tiles_n tiles of experts and each split of K. */
typedef struct sm90_route_candidate {
    int tile;
    int64_t clusters, tiles_n, k_tiles, split_k; /* clusters: along tokens */
    double us;
} sm90_route_candidate;

static int64_t clusters_at_once(const sm90_route_tile_config *t, const cuda_gpu *gpu)
{
    return gpu->sms / t->cluster > 0 ? gpu->sms / t->cluster : 1;
}

static int32_t scratch_experts(const nk_route_problem *p) { return ROUTE_SCRATCH_EXPERTS((int32_t)p->n); }

/* Behind the pipeline, or what takes its place after the main loop. */
static int32_t barriers_at(const sm90_route_tile_config *t, const nk_route_problem *p)
{
    const int32_t pipeline = t->stages * SM90_ROUTE_STAGE_BYTES(t->tile_m, t->tile_n, t->panels);
    const int32_t later =
        SM90_ROUTE_SUM_BYTES(t->tile_m, t->tile_n) + t->warps * (int32_t)ROUTE_SCRATCH_BYTES(scratch_experts(p));
    return pipeline > later ? pipeline : later;
}

static int32_t sm90_route_smem_bytes(const sm90_route_tile_config *t, const nk_route_problem *p)
{
    return barriers_at(t, p) + SM90_ROUTE_BARRIER_BYTES(t->stages);
}

static int64_t k_tiles_per_cta(const sm90_route_candidate *c) { return nk_ceil_div(c->k_tiles, c->split_k); }

static int64_t tokens_of_cta(const sm90_route_tile_config *t, const nk_route_problem *p)
{
    return p->m < t->tile_m ? p->m : t->tile_m;
}

/* How many CTAs with partial sums of the same logits may route: one, unless all are resident. */
static int64_t sm90_route_waiters_of(const sm90_route_candidate *c, const cuda_gpu *gpu)
{
    const int64_t arrivals = c->tiles_n * c->split_k;
    return c->clusters * arrivals <= clusters_at_once(&tiles[c->tile], gpu) ? arrivals : 1;
}

/* How many tokens a CTA routes in a turn behind the grid barrier. */
static int64_t sm90_route_turn_tokens(const sm90_route_candidate *c, const nk_route_problem *p, const cuda_gpu *gpu)
{
    const sm90_route_tile_config *t = &tiles[c->tile];
    if (c->tiles_n * c->split_k == 1) return t->warps;
    const int64_t fair = nk_ceil_div(tokens_of_cta(t, p), sm90_route_waiters_of(c, gpu));
    return fair < 1 ? 1 : fair > t->warps ? t->warps : fair;
}

static double sm90_route_time_of(const sm90_route_candidate *c, const nk_route_problem *p, const cuda_gpu *gpu)
{
    const sm90_route_tile_config *t = &tiles[c->tile];
    const int64_t waves = nk_ceil_div(c->clusters * c->tiles_n * c->split_k, clusters_at_once(t, gpu));
    const double k_bytes = 2.0 * (double)(k_tiles_per_cta(c) * t->panels * SM90_ROUTE_PANEL);
    const double loaded = (t->tile_m + (double)t->tile_n / t->cluster) * k_bytes;
    const double written = (double)(t->tile_m + t->tile_n) * k_bytes;
    const double read = t->tile_n / 64.0 * (64 + t->tile_m) * k_bytes;
    const double mainloop =
        nk_larger(loaded / SM90_ROUTE_LOADED_PER_US, (written + read) / SM90_ROUTE_SHARED_BYTES_PER_US);
    const double tokens = (double)tokens_of_cta(t, p), sums = tokens * t->tile_n * 4;
    double us = SM90_ROUTE_BEGIN_US + mainloop;
    if (t->cluster > 1) us += SM90_ROUTE_MULTICAST_US;
    double turns = (double)nk_ceil_div((int64_t)tokens, t->warps);
    if (c->tiles_n * c->split_k > 1) {
        const int64_t at_once = sm90_route_turn_tokens(c, p, gpu);
        turns = (double)nk_ceil_div(nk_ceil_div((int64_t)tokens, at_once), sm90_route_waiters_of(c, gpu));
        const double partials = turns * (double)(at_once * c->tiles_n * t->tile_n * c->split_k * 4);
        const double trips = turns * (double)nk_ceil_div(c->split_k, SM90_ROUTE_SPLITS_AT_ONCE(t->warps));
        us += SM90_ROUTE_BARRIER_US + (sums + partials) / SM90_ROUTE_LOADED_PER_US + trips * SM90_ROUTE_TRIP_US;
    }
    return (double)waves * (us + turns * SM90_ROUTE_TURN_US);
}

#define MAX_SPLIT_K 32

/* Considers one tile. If `invariant`, sums may not depend on M, so K is not split. */
static void sm90_route_consider(const nk_route_problem *p, const cuda_gpu *gpu, int index, bool invariant,
                                sm90_route_candidate *best)
{
    const sm90_route_tile_config *t = &tiles[index];
    sm90_route_candidate c = {.tile = index,
                              .clusters = nk_ceil_div(nk_ceil_div(p->m, t->tile_m), t->cluster),
                              .tiles_n = nk_ceil_div(p->n, t->tile_n),
                              .k_tiles = nk_ceil_div(p->k, t->panels * SM90_ROUTE_PANEL)};
    for (c.split_k = 1; c.split_k <= (invariant ? 1 : MAX_SPLIT_K); c.split_k++) {
        if (c.split_k > 1 && c.clusters * c.tiles_n * c.split_k > clusters_at_once(t, gpu)) break;
        if (c.split_k > 1 && c.split_k > c.k_tiles) break;
        c.us = sm90_route_time_of(&c, p, gpu);
        if (best->tile < 0 || c.us < best->us) *best = c;
    }
}

/* Why this tile cannot serve the problem, or NULL. */
static const char *sm90_route_why_not_tile(const nk_route_problem *p, const cuda_gpu *gpu,
                                           const sm90_route_tile_config *t)
{
    return sm90_route_smem_bytes(t, p) > gpu->smem_per_cta ? "its CTAs do not fit into shared memory" : NULL;
}

static nk_status sm90_route_choose(const nk_route_problem *p, const cuda_gpu *gpu, const nk_settings *settings,
                                   nk_plan *plan, sm90_route_candidate *best)
{
    const int forced = nk_tile_forced(settings, &sm90_route_family);
    const bool invariant = settings->batch_invariant;
    const char *why = cuda_route_why_no_map(p, invariant);
    *best = (sm90_route_candidate){.tile = -1};
    if (forced != NK_TILE_ANY) {
        if (!why) why = sm90_route_why_not_tile(p, gpu, &tiles[forced]);
        if (why) return NK_TILE_REFUSE(&sm90_route_family, forced, "%s", why);
        sm90_route_consider(p, gpu, forced, invariant, best);
        return NK_OK;
    }
    if (why) return nk_decline(plan, why);
    for (int i = 0; i < SM90_ROUTE_TILE_COUNT; i++) {
        const char *why_not = sm90_route_why_not_tile(p, gpu, &tiles[i]);
        if (why_not)
            why = why_not;
        else
            sm90_route_consider(p, gpu, i, invariant, best);
    }
    return best->tile < 0 ? nk_decline(plan, why) : NK_OK;
}

typedef struct sm90_route_choice {
    cuda_kernel *kernel;
    sm90_route_params params; /* without the workspace's addresses and the counters' base */
    cuda_grid grid;
    int32_t tile;
    int64_t counter_bytes;
    int64_t sorters; /* CTAs of the second kernel */
} sm90_route_choice;

NK_CHOICE_FITS(sm90_route_choice);

static sm90_route_params sm90_route_params_of(const nk_route_problem *p, const cuda_gpu *gpu,
                                              const sm90_route_candidate *c, nk_pdl pdl)
{
    const sm90_route_tile_config *t = &tiles[c->tile];
    return (sm90_route_params){
        .pitch = (int32_t)c->tiles_n * t->tile_n,
        .arrivals = (int32_t)(c->tiles_n * c->split_k),
        .waiters = (int32_t)sm90_route_waiters_of(c, gpu),
        .turn_tokens = (int32_t)sm90_route_turn_tokens(c, p, gpu),
        .timeout = cuda_route_timeout(c->us),
        .k_tiles = (int32_t)c->k_tiles,
        .k_tiles_per_cta = (int32_t)k_tiles_per_cta(c),
        .split_k = (int32_t)c->split_k,
        .scratch_experts = scratch_experts(p),
        .barriers_at = barriers_at(t, p),
        .early = pdl == NK_PDL_WEIGHTS ? t->stages : 0,
    };
}

nk_status sm90_plan_route(const nk_route_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    sm90_route_choice *r = choice;
    const cuda_gpu *gpu = NULL;
    sm90_route_candidate c;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    NK_TRY(sm90_route_choose(p, gpu, settings, plan, &c));
    const sm90_route_tile_config *t = &tiles[c.tile];
    const bool is_shared = c.tiles_n * c.split_k > 1;
    *r = (sm90_route_choice){
        .kernel = kernels[c.tile][cuda_route_is_plain(p)][p->x.dtype == NK_BF16],
        .params = sm90_route_params_of(p, gpu, &c, settings->pdl),
        .grid = {.x = c.clusters * t->cluster,
                 .y = c.tiles_n,
                 .z = c.split_k,
                 .threads = SM90_ROUTE_THREADS(t->warps),
                 .smem_bytes = sm90_route_smem_bytes(t, p),
                 .cluster.x = t->cluster,
                 .overlap = settings->pdl != NK_PDL_OFF},
        .tile = c.tile,
        .counter_bytes = is_shared ? nk_ceil_div(c.clusters * t->cluster * ROUTE_BARRIER_COUNTERS * 8, 256) * 256 : 0,
        .sorters = cuda_sort_ctas(p->m * p->top_k, gpu->sms),
    };
    plan->kernel = r->kernel->name;
    plan->why =
        is_shared ? "clusters share tokens; the last CTAs to arrive route them" : "a cluster has its tokens to itself";
    plan->tile = sm90_route_family.tiles[c.tile];
    plan->tile_m = t->tile_m;
    plan->tile_n = t->tile_n;
    plan->tile_k = t->panels * SM90_ROUTE_PANEL;
    plan->grid = r->grid.x * r->grid.y * r->grid.z;
    plan->threads = r->grid.threads;
    plan->stages = t->stages;
    plan->cluster = t->cluster;
    plan->split = (int32_t)c.split_k;
    plan->workspace_bytes = is_shared ? r->counter_bytes + c.split_k * p->m * r->params.pitch * 4 : 0;
    plan->batch_invariant = settings->batch_invariant;
    return NK_OK;
}

nk_status sm90_run_route(const nk_route_problem *p, const void *choice, const nk_exec *exec)
{
    const sm90_route_choice *r = choice;
    const sm90_route_tile_config *t = &tiles[r->tile];
    sm90_route_params params = r->params;
    cuda_tensor_map w, x;
    params.partials = (float *)((uint8_t *)exec->workspace + r->counter_bytes);
    params.counters = exec->workspace;
    params.base = cuda_counter_base();
    NK_TRY(cuda_route_maps(p, SM90_ROUTE_PANEL, t->tile_n / t->cluster, t->tile_m, (cuda_tensor_map *[]){&w, &x}));
    void *args[] = {&w, &x, (void *)(uintptr_t)p, &params};
    NK_TRY(cuda_launch(r->kernel, p->device, exec->stream, &r->grid, args));
    if (!p->sorts || p->m == 1) return NK_OK;
    return cuda_route_sort(&sm90_route_sort, p, r->sorters, r->grid.overlap, exec);
}
