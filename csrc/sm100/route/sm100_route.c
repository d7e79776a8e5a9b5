/* route on Blackwell: chooses a tile and split K by cost; launches. What tensor cores do not serve goes to
 * cuda/cuda_route_fma.h. */
#include "sm100/sm100_backend.h"

#include "cuda/cuda_route_fma.h"
#include "cuda/cuda_route_plan.h"
#include "cuda/cuda_route_sort.h"
#include "nk_format.h"
#include "sm100_route_config.h"
#include "sm100_route_costs.h"

typedef struct route_tile_config {
    int32_t tokens;
    bool tokens_are_mma_m;
} route_tile_config;

static const route_tile_config tiles[SM100_ROUTE_TILE_COUNT] = {
#define ROW(name, ...) [SM100_ROUTE_##name] = {__VA_ARGS__},
    SM100_ROUTE_TILES(ROW)
#undef ROW
};

static void sm100_route_describe(const void *of, int tile, nk_tile_info *info)
{
    (void)of;
    info->tile_m = tiles[tile].tokens;
    info->tile_n = tiles[tile].tokens_are_mma_m ? 0 : SM100_ROUTE_MMA_M; /* 0: of all experts */
}

const nk_family sm100_route_family = {"sm100", "route", NK_TILE_NAMES(SM100_ROUTE_TILES), NULL, sm100_route_describe,
                                      NULL};

#define SMEM_MOST (227 * 1024)

/* A tile, and the parameters of its launch. */
typedef struct candidate {
    int tile;
    sm100_route_params params;
    int64_t clusters;
    double us;
} candidate;

static int32_t cluster_of(const sm100_route_params *params) { return params->expert_tiles * params->split_k; }

static int32_t smem_bytes(const sm100_route_params *params) { return params->barriers_at + SM100_ROUTE_BARRIER_BYTES; }

/* Whether threads can select: few experts of few groups, and nothing else that each has to write. */
static bool threads_can_route(const nk_route_problem *p)
{
    const bool few_groups = p->topk_group >= p->n_group || p->n_group <= SM100_ROUTE_THREAD_MAX_GROUPS;
    return p->top_k <= SM100_ROUTE_THREAD_MAX_TOP_K && few_groups && !p->returns_logits;
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
static uint32_t instruction_of(nk_dtype dtype, int32_t mma_n)
{
    const uint32_t bf16 = dtype == NK_BF16;
    return 1u << 4 | bf16 << 7 | bf16 << 10 | (uint32_t)mma_n / 8 << 17 | SM100_ROUTE_MMA_M / 16 << 24;
}

/* The parameters of a launch without split K. */
static sm100_route_params params_of(const nk_route_problem *p, const route_tile_config *t, nk_pdl pdl)
{
    const int32_t n = (int32_t)p->n, experts = t->tokens_are_mma_m ? (n + 15) / 16 * 16 : SM100_ROUTE_MMA_M;
    sm100_route_params params = {.tokens_are_mma_m = t->tokens_are_mma_m,
                                 .by_thread = t->tokens_are_mma_m && threads_can_route(p),
                                 .tokens = t->tokens,
                                 .experts = experts,
                                 .expert_tiles = (int32_t)nk_ceil_div(n, experts),
                                 .split_k = 1,
                                 .steps = (int32_t)nk_ceil_div(p->k, SM100_ROUTE_TILE_K),
                                 .scratch_at = 4 * t->tokens * SM100_ROUTE_PITCH(experts),
                                 .scratch_experts = ROUTE_SCRATCH_EXPERTS(n)};
    const int32_t mma_n = sm100_route_mma_n(&params), stage = SM100_ROUTE_STAGE_BYTES(mma_n);
    const int32_t fitting = (SMEM_MOST - SM100_ROUTE_BARRIER_BYTES) / stage;
    const int32_t scratch =
        params.by_thread ? SM100_ROUTE_THREAD_BYTES : SM100_ROUTE_WARPS * ROUTE_SCRATCH_BYTES(params.scratch_experts);
    params.stages = fitting < SM100_ROUTE_MAX_STAGES ? fitting : SM100_ROUTE_MAX_STAGES;
    params.barriers_at = (int32_t)nk_larger(params.stages * stage, params.scratch_at + scratch);
    params.early = pdl == NK_PDL_WEIGHTS ? params.stages : 0;
    params.tmem_columns = tmem_columns(mma_n);
    params.instruction = instruction_of(p->x.dtype, mma_n);
    return params;
}

/* The longer of a CTA's loads and MMAs, then its share of the tokens. */
static double route_us(const nk_route_problem *p, const candidate *c, const cuda_gpu *gpu)
{
    const sm100_route_params *params = &c->params;
    const int32_t mma_n = sm100_route_mma_n(params), cluster = cluster_of(params);
    const int32_t at_once = gpu->sms / cluster > 0 ? gpu->sms / cluster : 1;
    const double waves = (double)nk_ceil_div(c->clusters, at_once);
    const double step =
        nk_larger(SM100_ROUTE_STAGE_BYTES(mma_n) / SM100_ROUTE_BYTES_PER_CYCLE, mma_n * SM100_ROUTE_MMA_N_CYCLES);
    const int64_t tokens = p->m < params->tokens ? p->m : params->tokens;
    double cycles = SM100_ROUTE_FILL_CYCLES + (double)nk_ceil_div(params->steps, params->split_k) * step;
    if (params->by_thread)
        return waves * (cycles + (double)p->n * SM100_ROUTE_THREAD_CYCLES) / SM100_ROUTE_CYCLES_PER_US;
    const int64_t share = nk_ceil_div(tokens, cluster), turns = nk_ceil_div(share, SM100_ROUTE_WARPS);
    const double sums = (double)share * params->split_k * params->expert_tiles * params->experts * 4;
    if (cluster > 1) cycles += SM100_ROUTE_CLUSTER_CYCLES + sums / SM100_ROUTE_PEER_BYTES_PER_CYCLE;
    return waves * (cycles + (double)turns * SM100_ROUTE_TURN_CYCLES) / SM100_ROUTE_CYCLES_PER_US;
}

/* Considers one tile. With batch_invariant sums may not depend on M, so K is not split. */
static void consider(const nk_route_problem *p, const cuda_gpu *gpu, int index, const nk_settings *settings,
                     candidate *best)
{
    candidate c = {.tile = index, .params = params_of(p, &tiles[index], settings->pdl)};
    c.clusters = nk_ceil_div(p->m, c.params.tokens);
    const bool alone = settings->batch_invariant || c.params.tokens_are_mma_m;
    const int32_t most = alone ? 1 : SM100_ROUTE_MAX_CLUSTER / c.params.expert_tiles;
    for (int32_t split_k = 1; split_k <= most && split_k <= c.params.steps; split_k++) {
        c.params.split_k = split_k;
        c.us = route_us(p, &c, gpu);
        if (best->tile < 0 || c.us < best->us) *best = c;
    }
}

/* Why this tile cannot serve it, or NULL. */
static const char *why_not_tile(const nk_route_problem *p, const cuda_gpu *gpu, int index)
{
    const route_tile_config *t = &tiles[index];
    if (t->tokens_are_mma_m && p->n > SM100_ROUTE_MAX_MMA_N) return "it takes up to 256 experts";
    const sm100_route_params params = params_of(p, t, NK_PDL_SAFE);
    return smem_bytes(&params) > gpu->smem_per_cta ? "its CTAs do not fit into shared memory" : NULL;
}

/* The fastest tile that can serve the problem, or none. With batch_invariant there is one: the same
 * instructions then make a row, whatever the other rows are. */
static nk_status choose(const nk_route_problem *p, const cuda_gpu *gpu, const nk_settings *settings, candidate *best)
{
    const int forced = nk_tile_forced(settings, &sm100_route_family);
    const char *why =
        p->from_logits ? "given logits need no tensor cores" : cuda_route_why_no_map(p, settings->batch_invariant);
    const char *why_not = NULL;
    *best = (candidate){.tile = NK_TILE_ANY};
    for (int i = 0; i < SM100_ROUTE_TILE_COUNT && !why; i++) {
        if (forced != NK_TILE_ANY && i != forced) continue;
        why_not = why_not_tile(p, gpu, i);
        if (!why_not) consider(p, gpu, i, settings, best);
        if (settings->batch_invariant) break;
    }
    if (best->tile != NK_TILE_ANY) return NK_OK;
    if (!why) why = why_not;
    return forced != NK_TILE_ANY ? NK_TILE_REFUSE(&sm100_route_family, forced, "%s", why) : NK_OK;
}

static const cuda_route_fma_kernels fma_kernels = CUDA_ROUTE_FMA_KERNELS(sm100);

typedef struct route_choice {
    bool by_tile; /* else `fma` says how */
    sm100_route_params params;
    cuda_grid grid;
    cuda_route_fma_choice fma;
    int64_t sorters; /* CTAs of the permutation */
    bool overlap;
} route_choice;

NK_CHOICE_FITS(route_choice);

nk_status sm100_plan_route(const nk_route_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    route_choice *r = choice;
    const cuda_gpu *gpu = NULL;
    candidate c;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    NK_TRY(choose(p, gpu, settings, &c));
    r->by_tile = c.tile != NK_TILE_ANY;
    r->sorters = cuda_sort_ctas(p->m * p->top_k, gpu->sms);
    r->overlap = settings->pdl != NK_PDL_OFF;
    if (!r->by_tile) return cuda_plan_route_fma(p, &fma_kernels, gpu, settings, plan, &r->fma);
    r->params = c.params;
    r->grid = (cuda_grid){.x = c.clusters * cluster_of(&c.params),
                          .y = 1,
                          .z = 1,
                          .threads = SM100_ROUTE_THREADS,
                          .smem_bytes = smem_bytes(&c.params),
                          .cluster.x = cluster_of(&c.params),
                          .overlap = r->overlap};
    plan->kernel = sm100_route.name;
    plan->why = c.params.by_thread ? "a thread routes the token whose logits are its lane of tensor memory"
                                   : "the CTAs of a cluster share its tokens; a warp routes a token";
    plan->tile = sm100_route_family.tiles[c.tile];
    plan->tile_m = c.params.tokens;
    plan->tile_n = c.params.experts;
    plan->tile_k = SM100_ROUTE_TILE_K;
    plan->grid = r->grid.x;
    plan->threads = SM100_ROUTE_THREADS;
    plan->stages = c.params.stages;
    plan->cluster = cluster_of(&c.params);
    plan->split = c.params.split_k;
    plan->batch_invariant = settings->batch_invariant;
    return NK_OK;
}

static nk_status run_tile(const nk_route_problem *p, const route_choice *r, const nk_exec *exec)
{
    sm100_route_params params = r->params;
    cuda_tensor_map w, x;
    NK_TRY(cuda_route_maps(p, SM100_ROUTE_TILE_K, params.experts, params.tokens, (cuda_tensor_map *[]){&w, &x}));
    void *args[] = {&w, &x, (void *)(uintptr_t)p, &params};
    return cuda_launch(&sm100_route, p->device, exec->stream, &r->grid, args);
}

nk_status sm100_run_route(const nk_route_problem *p, const void *choice, const nk_exec *exec)
{
    const route_choice *r = choice;
    NK_TRY(r->by_tile ? run_tile(p, r, exec) : cuda_run_route_fma(p, &r->fma, exec));
    return p->sorts ? cuda_route_sort(&sm100_route_sort, p, r->sorters, r->overlap, exec) : NK_OK;
}
