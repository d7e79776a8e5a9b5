/* route: chooses a tile and how many CTAs work on it by cost, and launches. */
#include "sm80/sm80_backend.h"

#include "cuda/cuda_route_plan.h"
#include "nk_format.h"
#include "sm80_route_config.h"
#include "sm80_route_costs.h"

typedef struct sm80_route_tile {
    int32_t tokens, experts, step, stages, ctas, smem_bytes;
    bool aligned;
} sm80_route_tile;

static const sm80_route_tile tiles[SM80_ROUTE_KERNEL_COUNT] = {
#define ROW(name, tokens, experts, warp_tokens, warp_experts, k_warps, stages, ctas, aligned) \
    [SM80_ROUTE_##name] = {                                                                   \
        tokens, experts, 64 * (k_warps), stages, ctas, SM80_ROUTE_SMEM(tokens, experts, k_warps, stages), aligned},
    SM80_ROUTE_TILES(ROW)
#undef ROW
#define ROW(name, tokens, experts, ctas, ...) \
    [SM80_ROUTE_##name] = {tokens, experts, SM80_ROUTE_FMA_STEP, 2, ctas, SM80_ROUTE_TURN_BYTES, false},
        SM80_ROUTE_FMA_TILES(ROW)
#undef ROW
            [SM80_ROUTE_select] = {SM80_ROUTE_WARPS, NK_MAX_EXPERTS, 1, 1, SM80_ROUTE_SELECT_CTAS,
                                   SM80_ROUTE_TURN_BYTES, false},
};

static void sm80_route_describe(const void *of, int tile, nk_tile_info *info)
{
    (void)of;
    info->tile_m = tiles[tile].tokens;
    info->tile_n = tiles[tile].experts;
}

const nk_family sm80_route_family = {"sm80", "route", NK_TILE_NAMES(SM80_ROUTE_TILES), NULL, sm80_route_describe, NULL};

#define ROW(name, ...) [SM80_ROUTE_##name] = {&sm80_route_##name##_fp16, &sm80_route_##name##_bf16},
#define FMA_ROW(name, ...) [SM80_ROUTE_##name] = {&sm80_route_##name, &sm80_route_##name},
static cuda_kernel *const kernels[SM80_ROUTE_KERNEL_COUNT][2] = {
    SM80_ROUTE_TILES(ROW) SM80_ROUTE_FMA_TILES(FMA_ROW)[SM80_ROUTE_select] = {&sm80_route_select, &sm80_route_select}};
#undef ROW
#undef FMA_ROW

/* A tile, and how many CTAs work on a token tile: `ranges` of experts times `splits` of K. */
typedef struct sm80_route_candidate {
    int tile;
    int64_t token_tiles, expert_tiles, ranges, steps, splits;
    double us;
} sm80_route_candidate;

static int64_t resident_ctas(const sm80_route_tile *t, const cuda_gpu *gpu)
{
    int64_t fit = cuda_ctas_per_sm(gpu, t->smem_bytes);
    return fit < 1 ? 1 : fit < t->ctas ? fit : t->ctas;
}

static bool all_resident(const sm80_route_candidate *c, const cuda_gpu *gpu)
{
    return c->token_tiles * c->ranges * c->splits <= resident_ctas(&tiles[c->tile], gpu) * gpu->sms;
}

/* How many CTAs of a token tile may route. Only one where the others may not be resident at the same time. */
static int64_t sm80_route_waiters_of(const sm80_route_candidate *c, const cuda_gpu *gpu)
{
    const int64_t ctas = c->ranges * c->splits;
    if (!all_resident(c, gpu)) return 1;
    return ctas < SM80_ROUTE_MOST_WAITERS ? ctas : SM80_ROUTE_MOST_WAITERS;
}

/* How many tokens a CTA routes in a turn. */
static int64_t sm80_route_turn_tokens(const sm80_route_candidate *c, const nk_route_problem *p, const cuda_gpu *gpu)
{
    const int64_t tokens = p->m < tiles[c->tile].tokens ? p->m : tiles[c->tile].tokens;
    const int64_t fair = nk_ceil_div(tokens, sm80_route_waiters_of(c, gpu));
    return fair < 1 ? 1 : fair > SM80_ROUTE_WARPS ? SM80_ROUTE_WARPS : fair;
}

/* How many CTAs of the launch route: for each token tile as many as it has turns, but no more than may. */
static int64_t leavers_of(const sm80_route_candidate *c, const nk_route_problem *p, const cuda_gpu *gpu)
{
    const int64_t tokens = tiles[c->tile].tokens, at_once = sm80_route_turn_tokens(c, p, gpu),
                  waiters = sm80_route_waiters_of(c, gpu);
    if (c->token_tiles == 0) return 1;
    const int64_t full = nk_ceil_div(tokens, at_once),
                  last = nk_ceil_div(p->m - (c->token_tiles - 1) * tokens, at_once);
    return (c->token_tiles - 1) * (full < waiters ? full : waiters) + (last < waiters ? last : waiters);
}

#define ENTRIES_PER_SORTER 1024

/* How many of them may sort, if a permutation is wanted. */
static int64_t sorters_of(const sm80_route_candidate *c, const nk_route_problem *p, const cuda_gpu *gpu)
{
    const int64_t leavers = leavers_of(c, p, gpu), most = nk_ceil_div(p->m * p->top_k, ENTRIES_PER_SORTER);
    int64_t sorters = leavers < most ? leavers : most;
    if (!all_resident(c, gpu) || sorters < 1) return 1;
    return sorters < SM80_ROUTE_MOST_WAITERS ? sorters : SM80_ROUTE_MOST_WAITERS;
}

static double sm80_route_time_of(const sm80_route_candidate *c, const nk_route_problem *p, const cuda_gpu *gpu)
{
    const sm80_route_tile *t = &tiles[c->tile];
    const int64_t ctas = c->ranges * c->splits, total = ctas * c->token_tiles, resident = resident_ctas(t, gpu);
    const int64_t waves = nk_ceil_div(total, resident * gpu->sms), fair = nk_ceil_div(total, gpu->sms);
    const double crowd = (double)(fair < resident ? fair : resident);
    const double tokens = (double)(p->m < t->tokens ? p->m : t->tokens), experts = (double)t->experts;
    const double bytes = (tokens + experts) * t->step * 2, flops = 2.0 * t->tokens * experts * t->step;
    const double work = crowd * (crowd > 1 ? SM80_ROUTE_CROWDED : 1);
    const double step = nk_larger(work * nk_larger(bytes / SM80_ROUTE_BYTES_PER_US, flops / SM80_ROUTE_FLOP_PER_US),
                                  SM80_ROUTE_STEP_US);
    const double sums = crowd * tokens * experts * 4 / SM80_ROUTE_SUM_BYTES_PER_US;
    const int64_t steps = nk_ceil_div(c->steps, c->splits), tiles_per_cta = c->expert_tiles / c->ranges;
    const int64_t at_once = sm80_route_turn_tokens(c, p, gpu);
    const double rounds = (double)nk_ceil_div((int64_t)tokens, at_once * sm80_route_waiters_of(c, gpu));
    const double turn = SM80_ROUTE_TURN_US +
                        (double)(c->splits * c->expert_tiles * at_once) * experts * 4 / SM80_ROUTE_SUM_BYTES_PER_US;
    return (double)waves * ((double)tiles_per_cta * ((double)(steps + 2) * step + sums) +
                            (ctas > 1 ? SM80_ROUTE_BARRIER_US : 0) + (double)rounds * turn);
}

static sm80_route_candidate shape_of(const nk_route_problem *p, int index)
{
    const sm80_route_tile *t = &tiles[index];
    return (sm80_route_candidate){
        .tile = index,
        .token_tiles = nk_ceil_div(p->m, t->tokens),
        .expert_tiles = nk_ceil_div(p->n, t->experts),
        .ranges = 1,
        .steps = nk_ceil_div(p->k, t->step),
        .splits = 1,
    };
}

/* Considers one tile: a CTA alone with its tokens, or experts and perhaps K divided among several. */
static void sm80_route_consider(const nk_route_problem *p, const cuda_gpu *gpu, int index, sm80_route_candidate *best)
{
    static const int8_t splits[] = {1, 2, 3, 4, 6, 7, 8, 10, 14, 16, 28, 32};
    sm80_route_candidate c = shape_of(p, index);
    for (int i = -1; i < (int)sizeof splits; i++) {
        c.ranges = i < 0 ? 1 : c.expert_tiles;
        c.splits = i < 0 ? 1 : splits[i];
        if (c.splits > 1 && c.splits > c.steps) break;
        if (c.ranges * c.splits > SM80_ROUTE_MOST_CTAS) break;
        if (c.splits > 1) c.splits = nk_ceil_div(c.steps, nk_ceil_div(c.steps, c.splits)); /* every split has a step */
        c.us = sm80_route_time_of(&c, p, gpu);
        if (best->tile < 0 || c.us < best->us) *best = c;
    }
}

static bool has_aligned_rows(const nk_route_problem *p)
{
    uint64_t bits = (uint64_t)(uintptr_t)p->x.data | (uint64_t)(uintptr_t)p->w.data;
    if (p->m > 1) bits |= (uint64_t)p->x.row_stride;
    if (p->n > 1) bits |= (uint64_t)p->w.row_stride;
    return bits % 16 == 0;
}

/* Whether a tile is of about the right size. Others are not considered, which saves time. */
static bool is_near(const nk_route_problem *p, const sm80_route_tile *t)
{
    if (!t->aligned) return true;
    return p->m <= 64 * t->tokens && p->m >= t->tokens / 2 - 15 && (t->experts <= 128 || p->n > 128);
}

#define INVARIANT_STEPS 8 /* at least, of one split */
#define INVARIANT_SPLITS 64

/* The sums of a token depend on the tile and the splits, so neither may depend on M. The two tiles add in the same
 * order. */
static sm80_route_candidate invariant_candidate(const nk_route_problem *p, int tile)
{
    sm80_route_candidate c = shape_of(p, tile);
    int64_t steps = nk_ceil_div(c.steps, INVARIANT_SPLITS);
    if (steps < INVARIANT_STEPS) steps = INVARIANT_STEPS;
    c.ranges = c.expert_tiles;
    if (c.steps) c.splits = nk_ceil_div(c.steps, steps);
    return c;
}

#define STATIC_BYTES 1024 /* static shared memory beside that of the tile, at most */

static bool has_room(const cuda_gpu *gpu, const sm80_route_tile *t)
{
    return t->smem_bytes + STATIC_BYTES <= gpu->smem_per_cta;
}

/* Whether a forced tile can serve the problem: `narrow` reads any address. */
static nk_status check_forced(const nk_route_problem *p, const cuda_gpu *gpu, int forced)
{
    const sm80_route_tile *t = &tiles[forced];
    if (t->aligned && !has_aligned_rows(p))
        return NK_TILE_REFUSE(&sm80_route_family, forced, "%s", "rows of x and w are not aligned to 16 bytes");
    if (has_room(gpu, t)) return NK_OK;
    return NK_TILE_REFUSE(&sm80_route_family, forced, "its CTA takes %d bytes of shared memory, cuda:%d has %d",
                          t->smem_bytes + STATIC_BYTES, gpu->index, gpu->smem_per_cta);
}

#define FMA_FLOP_PER_US 2e5 /* of an SM */
#define FMA_STEPS 8         /* at least, of one split */
#define FMA_SPLITS 64
#define FMA_INVARIANT_STEPS 32

/* Where tensor cores cannot multiply: a large tile where both extents fill it, and splits of K to fill the GPU. */
static sm80_route_candidate fma_candidate(const nk_route_problem *p, const cuda_gpu *gpu, bool invariant)
{
    sm80_route_candidate c = shape_of(p, p->m >= 96 && p->n >= 96 ? SM80_ROUTE_fma128 : SM80_ROUTE_fma32);
    if (c.token_tiles == 0 || c.steps == 0) return c;
    const sm80_route_tile *t = &tiles[c.tile];
    const int64_t resident = resident_ctas(t, gpu), most = nk_ceil_div(c.steps, FMA_STEPS);
    int64_t splits = resident * gpu->sms / (c.token_tiles * c.expert_tiles);
    if (splits > most) splits = most;
    if (invariant) splits = nk_ceil_div(c.steps, FMA_INVARIANT_STEPS); /* the two tiles add in the same order */
    if (splits > FMA_SPLITS) splits = FMA_SPLITS;
    if (splits < 1) splits = 1;
    c.ranges = c.expert_tiles;
    c.splits = nk_ceil_div(c.steps, nk_ceil_div(c.steps, splits)); /* every split has a step */
    const double steps = (double)nk_ceil_div(c.steps, c.splits);
    c.us = 2.0 * t->tokens * t->experts * t->step * steps * (double)resident / FMA_FLOP_PER_US;
    return c;
}

static nk_status sm80_route_choose(const nk_route_problem *p, const cuda_gpu *gpu, const nk_settings *settings,
                                   sm80_route_candidate *best)
{
    const int forced = nk_tile_forced(settings, &sm80_route_family);
    *best = (sm80_route_candidate){.tile = -1};
    if (!nk_route_has_halves(p)) {
        if (forced != NK_TILE_ANY)
            return NK_TILE_REFUSE(&sm80_route_family, forced, "%s", "x and w are not of one 16-bit type");
        *best = p->from_logits ? shape_of(p, SM80_ROUTE_select) : fma_candidate(p, gpu, settings->batch_invariant);
        return NK_OK;
    }
    if (forced != NK_TILE_ANY) NK_TRY(check_forced(p, gpu, forced));
    if (settings->batch_invariant) {
        const int usual = has_aligned_rows(p) ? SM80_ROUTE_t32 : SM80_ROUTE_narrow;
        *best = invariant_candidate(p, forced != NK_TILE_ANY ? forced : usual);
        return NK_OK;
    }
    if (forced != NK_TILE_ANY) sm80_route_consider(p, gpu, forced, best);
    for (int any = 0; any < 2 && best->tile < 0; any++) {
        for (int i = 0; i < SM80_ROUTE_TILE_COUNT; i++) {
            const sm80_route_tile *t = &tiles[i];
            if (has_room(gpu, t) && t->aligned == has_aligned_rows(p) && (any || is_near(p, t)))
                sm80_route_consider(p, gpu, i, best);
        }
    }
    NK_CHECK(best->tile >= 0, NK_BACKEND_ERROR, "cuda:%d: %d bytes of shared memory for a CTA, too little for any tile",
             gpu->index, gpu->smem_per_cta);
    return NK_OK;
}

static int64_t counter_bytes(const sm80_route_candidate *c)
{
    return nk_ceil_div((c->token_tiles + 1) * ROUTE_BARRIER_COUNTERS * 8, 256) * 256;
}

static int64_t pitch_of(const sm80_route_candidate *c) { return c->expert_tiles * tiles[c->tile].experts; }

typedef struct sm80_route_choice {
    cuda_kernel *kernel;
    sm80_route_params params; /* without the workspace's addresses and the counters' base */
    cuda_grid grid;
    int64_t counter_bytes;
} sm80_route_choice;

NK_CHOICE_FITS(sm80_route_choice);

static sm80_route_params sm80_route_params_of(const nk_route_problem *p, const cuda_gpu *gpu,
                                              const sm80_route_candidate *c)
{
    return (sm80_route_params){
        .token_tiles = (int32_t)c->token_tiles,
        .pitch = (int32_t)(p->from_logits ? nk_ceil_div(p->n, 4) * 4 : pitch_of(c)),
        .ctas = (int32_t)(c->ranges * c->splits),
        .turn_tokens = (int32_t)sm80_route_turn_tokens(c, p, gpu),
        .timeout = cuda_route_timeout(c->tile < SM80_ROUTE_TILE_COUNT ? sm80_route_time_of(c, p, gpu) : c->us),
        .waiters = (int32_t)sm80_route_waiters_of(c, gpu),
        .leavers = (int32_t)leavers_of(c, p, gpu),
        .sorters = (int32_t)sorters_of(c, p, gpu),
        .splits = (int32_t)c->splits,
        .steps = (int32_t)c->steps,
        .steps_per_split = (int32_t)nk_ceil_div(c->steps, c->splits),
        .tiles_per_cta = (int32_t)(c->expert_tiles / c->ranges),
    };
}

nk_status sm80_plan_route(const nk_route_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    sm80_route_choice *r = choice;
    const cuda_gpu *gpu = NULL;
    sm80_route_candidate c = {0};
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    NK_TRY(sm80_route_choose(p, gpu, settings, &c));
    if (c.token_tiles == 0) c.ranges = c.splits = 1; /* without a token one CTA writes the empty permutation */
    const sm80_route_tile *t = &tiles[c.tile];
    NK_CHECK(c.token_tiles <= INT32_MAX, NK_VALUE_ERROR, "route: %lld tokens are more than one launch can have",
             (long long)p->m);
    *r = (sm80_route_choice){
        .kernel = kernels[c.tile][p->x.dtype == NK_BF16],
        .params = sm80_route_params_of(p, gpu, &c),
        .grid = {.x = c.token_tiles,
                 .y = c.ranges,
                 .z = c.splits,
                 .threads = SM80_ROUTE_THREADS,
                 .smem_bytes = t->smem_bytes},
        .counter_bytes = counter_bytes(&c),
    };
    plan->kernel = r->kernel->name;
    plan->why = p->from_logits            ? "the logits are given: a CTA has its tokens to itself"
                : c.ranges * c.splits > 1 ? "CTAs share tokens; the last to arrive route them"
                                          : "tokens enough for all SMs: a CTA has its tokens to itself";
    plan->tile_m = t->tokens;
    plan->tile_n = t->experts;
    plan->tile_k = t->step;
    plan->grid = c.token_tiles * c.ranges * c.splits;
    plan->threads = SM80_ROUTE_THREADS;
    plan->stages = t->stages;
    plan->tile = c.tile < SM80_ROUTE_TILE_COUNT ? sm80_route_family.tiles[c.tile] : NULL;
    plan->split = (int32_t)c.splits;
    plan->workspace_bytes = r->counter_bytes + (p->from_logits ? 0 : c.splits * p->m * pitch_of(&c) * 4);
    plan->batch_invariant = settings->batch_invariant;
    return NK_OK;
}

nk_status sm80_run_route(const nk_route_problem *p, const void *choice, const nk_exec *exec)
{
    const sm80_route_choice *r = choice;
    sm80_route_params params = r->params;
    params.partials = (float *)((uint8_t *)exec->workspace + r->counter_bytes);
    params.counters = exec->workspace;
    params.base = cuda_counter_base();
    cuda_grid grid = r->grid;
    if (grid.x == 0) grid.x = 1;
    void *args[] = {(void *)(uintptr_t)p, &params};
    return cuda_launch(r->kernel, p->device, exec->stream, &grid, args);
}
