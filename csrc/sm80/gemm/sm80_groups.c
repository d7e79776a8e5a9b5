/* Products of groups: launches of up to 32 groups, or one for all experts. */
#include "sm80_groups.h"

#include "cuda/cuda_groups.h"

#include <stddef.h>

_Static_assert(sizeof(cuda_groups) <= CUDA_MAX_PARAM_BYTES, "the groups of a launch are its parameters");

#define REDUCE SM80_GEMM_KIND_COUNT

/* Groups that one launch takes: of one kind, and no more than its parameters hold. */
typedef struct group_set {
    int kind, count;
    const nk_gemm_problem *member[CUDA_GROUPS_PER_LAUNCH];
    int64_t steps[CUDA_GROUPS_PER_LAUNCH]; /* of K in a tile of that member: the same for all tiles */
    sm80_gemm_dealing dealing;
} group_set;

static bool is_empty(const nk_gemm_problem *p) { return p->m == 0 || p->n == 0; }

/* The next launch: the list's groups of the first kind met from `next` on. False past the end. */
static bool next_set(const nk_grouped_gemm_problem *p, int64_t *next, group_set *set)
{
    const nk_gemm_problem *all = p->list ? p->list : &p->all;
    int64_t count = p->list ? p->groups : p->groups > 0;
    set->count = 0;
    for (; *next < count && set->count < CUDA_GROUPS_PER_LAUNCH; ++*next) {
        const nk_gemm_problem *gemm = &all[*next];
        if (is_empty(gemm)) continue;
        int kind = sm80_gemm_kind(&gemm->a, &gemm->b);
        if (set->count == 0) set->kind = kind;
        if (kind != set->kind) break;
        set->steps[set->count] = sm80_gemm_steps(gemm->k, kind);
        set->member[set->count++] = gemm;
    }
    return set->count > 0;
}

static int64_t token_tiles_at_most(int64_t rows, int64_t experts, int64_t tokens)
{
    int64_t busy = experts < rows ? experts : rows; /* every one of them can have a tile that is not full */
    return (rows - busy) / tokens + busy;
}

/* Contiguous: as many tiles as there would be if every expert had equally many rows. */
static int64_t token_tiles_expected(int64_t rows, int64_t experts, int64_t tokens)
{
    int64_t busy = experts < rows ? experts : rows;
    return busy * nk_ceil_div(nk_ceil_div(rows, busy), tokens);
}

static int64_t weight_tiles(const sm80_group_operator *op, const sm80_gemm_tile *t, int64_t n)
{
    return sm80_cover(n, op->outputs_per_warp * t->warps);
}

static sm80_gemm_work work_of(const nk_grouped_gemm_problem *p, const sm80_group_operator *op, const group_set *set,
                              int tile)
{
    const sm80_gemm_tile *t = &sm80_gemm_tiles[tile];
    sm80_gemm_work work = {0, 0};
    if (!op->kernels[tile][set->kind]) return SM80_GEMM_NO_KERNEL;
    for (int i = 0; i < set->count; i++) {
        const nk_gemm_problem *gemm = set->member[i];
        int64_t token_tiles =
            p->list ? sm80_cover(gemm->m, t->tokens) : token_tiles_expected(gemm->m, p->groups, t->tokens);
        int64_t tiles = token_tiles * weight_tiles(op, t, gemm->n);
        work.tiles += tiles;
        work.steps += tiles * set->steps[i];
    }
    return work;
}

/* Contiguous: the grid is for any offsets. Whole tiles: a CTA for each that there may be. Else enough for the GPU. */
static void widen(const nk_grouped_gemm_problem *p, const sm80_group_operator *op, group_set *set)
{
    const sm80_gemm_tile *t = &sm80_gemm_tiles[set->dealing.tile];
    const nk_gemm_problem *all = &p->all;
    int64_t most = token_tiles_at_most(all->m, p->groups, t->tokens) * weight_tiles(op, t, all->n);
    if (set->dealing.steps_per_cta && most * set->steps[0] <= SM80_MAX_UNITS) return;
    set->dealing.steps_per_cta = 0;
    set->dealing.grid = most;
    set->dealing.reduce_grid = set->dealing.workspace_bytes = 0;
}

/* How a set is launched: a pure function of it and the rules. */
static nk_status deal(const nk_grouped_gemm_problem *p, const sm80_group_operator *op, sm80_gemm_rules rules,
                      group_set *set)
{
    sm80_gemm_work work[SM80_GEMM_TILE_COUNT];
    for (int i = 0; i < SM80_GEMM_TILE_COUNT; i++)
        work[i] = work_of(p, op, set, i);
    NK_TRY(sm80_gemm_deal(p->device, rules, set->kind, work, &set->dealing));
    if (!p->list) widen(p, op, set);
    return NK_OK;
}

_Static_assert(sizeof(nk_gemm_problem) == 272, "copy() names every field");

/* Part by part: copied as one, compilers for x86 take `rep movs`, which is slow to begin. */
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
}

/* The launch's parameters; numbers the iterations of all groups. */
static void fill(const nk_grouped_gemm_problem *p, const sm80_group_operator *op, const group_set *set, float *partials,
                 cuda_groups *q)
{
    const sm80_gemm_tile *t = &sm80_gemm_tiles[set->dealing.tile];
    int64_t iters = 0;
    for (int i = 0; i < set->count; i++) {
        cuda_group *g = &q->group[i];
        copy(set->member[i], &g->gemm);
        g->first_iter = (uint32_t)iters;
        g->k_steps = (uint32_t)set->steps[i];
        g->iters_per_tile = set->dealing.steps_per_cta ? g->k_steps : 1;
        iters += sm80_cover(g->gemm.m, t->tokens) * weight_tiles(op, t, g->gemm.n) * g->iters_per_tile;
    }
    q->ctas = (uint32_t)set->dealing.grid;
    q->iters = (uint32_t)iters;
    q->count = set->count;
    q->offsets = p->list ? NULL : p->offsets;
    q->experts = p->groups;
    q->a_sf_bytes = p->a_sf_bytes;
    q->rows = p->rows;
    q->partials = partials;
}

/* Nearly all calls are one launch. There may be any number, and room for a choice is fixed: so those after the first
 * are dealt again when they are launched, from the same problem and by the same rules. */
typedef struct grouped_choice {
    sm80_gemm_rules rules;
    group_set first;
    int64_t next; /* group of the second launch */
} grouped_choice;

NK_CHOICE_FITS(grouped_choice);

/* Describes the first launch; the workspace serves one after the other. */
nk_status sm80_groups_plan(const nk_grouped_gemm_problem *p, const sm80_group_operator *op, const nk_settings *settings,
                           nk_plan *plan, void *choice)
{
    grouped_choice *c = choice;
    group_set *first = &c->first, later;
    c->rules = sm80_gemm_rules_of(settings);
    c->rules.batch_invariant |= !op->splits;
    c->next = 0;
    if (!next_set(p, &c->next, first)) return NK_OK;
    NK_TRY(deal(p, op, c->rules, first));
    plan->kernel = op->kernels[first->dealing.tile][first->kind]->name;
    sm80_gemm_describe(&first->dealing, c->rules, first->kind, op->outputs_per_warp, plan);
    for (int64_t next = c->next; next_set(p, &next, &later);) {
        NK_TRY(deal(p, op, c->rules, &later));
        if (later.dealing.workspace_bytes > plan->workspace_bytes)
            plan->workspace_bytes = later.dealing.workspace_bytes;
    }
    return NK_OK;
}

static nk_status launch(const nk_grouped_gemm_problem *p, const sm80_group_operator *op, const void *more,
                        sm80_gemm_rules rules, const group_set *set, const nk_exec *exec)
{
    cuda_groups params;
    const sm80_gemm_dealing *d = &set->dealing;
    fill(p, op, set, exec->workspace, &params);
    int32_t threads = 32 * sm80_gemm_tiles[d->tile].warps;
    cuda_grid grid = {.x = d->grid, .y = 1, .z = 1, .threads = threads, .smem_bytes = d->smem_bytes};
    void *args[] = {&params, (void *)(uintptr_t)more};
    NK_TRY(cuda_launch(op->kernels[d->tile][set->kind], p->device, exec->stream, &grid, args));
    if (d->reduce_grid == 0) return NK_OK;
    cuda_grid sum = {.x = d->reduce_grid,
                     .y = 1,
                     .z = 1,
                     .threads = threads,
                     .smem_bytes = CUDA_EXPERT_SCAN_BYTES,
                     .overlap = rules.overlap};
    return cuda_launch(op->kernels[d->tile][REDUCE], p->device, exec->stream, &sum, args);
}

nk_status sm80_groups_run(const nk_grouped_gemm_problem *p, const sm80_group_operator *op, const void *more,
                          const void *choice, const nk_exec *exec)
{
    const grouped_choice *c = choice;
    group_set later;
    if (c->first.count == 0) return NK_OK;
    NK_TRY(launch(p, op, more, c->rules, &c->first, exec));
    for (int64_t next = c->next; next_set(p, &next, &later);) {
        NK_TRY(deal(p, op, c->rules, &later));
        NK_TRY(launch(p, op, more, c->rules, &later, exec));
    }
    return NK_OK;
}
