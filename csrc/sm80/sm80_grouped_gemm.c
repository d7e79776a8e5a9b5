#include "sm80_gemm_plan.h"
#include "sm80_grouped_gemm_params.h"

#include <stddef.h>

extern cuda_image cuda_image_sm80_grouped_gemm;

_Static_assert(sizeof(sm80_grouped_gemm_params) <= CUDA_MAX_PARAM_BYTES, "the groups of a launch are its parameters");

#define OUTPUTS_PER_WARP 32
#define REDUCE SM80_GEMM_KIND_COUNT
#define KERNEL(text) {.name = "sm80_grouped_gemm_" text, .image = &cuda_image_sm80_grouped_gemm}
#define ROW(name, tokens, warps, stages, ctas)                                                \
    {KERNEL(#name "_codes"),        KERNEL(#name "_halves"),        KERNEL(#name "_bfloats"), \
     KERNEL(#name "_plain_halves"), KERNEL(#name "_plain_bfloats"), KERNEL(#name "_reduce")},
static cuda_kernel kernels[SM80_GEMM_TILE_COUNT][SM80_GEMM_KIND_COUNT + 1] = {SM80_GEMM_TILES(ROW)};

/* Groups that one launch takes: of one kind, and no more than its parameters hold. */
typedef struct batch {
    int kind;
    int64_t next; /* of the list: where the next launch goes on */
    sm80_gemm_choice choice;
    sm80_grouped_gemm_params params;
} batch;

static bool is_empty(const nk_gemm_problem *p) { return p->m == 0 || p->n == 0; }

/* Large K first: the longest tiles should not start last. */
static void insert(batch *b, const nk_gemm_problem *p)
{
    int at = b->params.count++;
    for (; at > 0 && b->params.group[at - 1].gemm.k < p->k; at--)
        b->params.group[at] = b->params.group[at - 1];
    b->params.group[at].gemm = *p;
}

static int64_t token_tiles_at_most(int64_t rows, int64_t experts, int64_t tokens)
{
    int64_t busy = experts < rows ? experts : rows; /* every one of them can have a tile that is not full */
    return (rows - busy) / tokens + busy;
}

/* Picks a tile for groups whose sizes differ by the mean of them; numbers the tiles. */
static nk_status choose(const nk_grouped_gemm_problem *p, batch *b)
{
    sm80_grouped_gemm_params *q = &b->params;
    int64_t rows = 0, n = 0, k = 0, groups = p->list ? q->count : p->groups;
    for (int i = 0; i < q->count; i++) {
        const nk_gemm_problem *gemm = &q->group[i].gemm;
        rows += gemm->m;
        n += gemm->n;
        k += gemm->k;
    }
    int64_t busy = groups < rows ? groups : rows;
    NK_TRY(sm80_gemm_choose(p->device, busy, nk_ceil_div(rows, busy), n / q->count, k / q->count, b->kind,
                            OUTPUTS_PER_WARP, &b->choice));
    const sm80_gemm_tile *t = &sm80_gemm_tiles[b->choice.tile];
    int64_t tiles = 0;
    q->splits = (uint32_t)b->choice.params.splits;
    for (int i = 0; i < q->count; i++) {
        const nk_gemm_problem *gemm = &q->group[i].gemm;
        q->group[i].first_tile = (uint32_t)tiles;
        tiles += nk_ceil_div(gemm->m, t->tokens) * nk_ceil_div(gemm->n, 32 * t->warps);
    }
    q->tiles = (uint32_t)tiles;
    if (!p->list) {
        q->tiles = (uint32_t)token_tiles_at_most(rows, groups, t->tokens);
        tiles = q->tiles * nk_ceil_div(p->all.n, 32 * t->warps);
    }
    b->choice.grid = tiles * q->splits;
    b->choice.reduce_grid = tiles * (t->tokens / 8);
    b->choice.workspace_bytes = q->splits > 1 ? tiles * q->splits * t->tokens * t->warps * 32 * 4 : 0;
    return NK_OK;
}

/* The next launch: the list's groups of the first kind met from `next` on. False past the end. */
static nk_status next_batch(const nk_grouped_gemm_problem *p, int64_t *next, batch *b, bool *any)
{
    b->params.count = 0;
    b->params.offsets = NULL;
    *any = false;
    if (!p->list) {
        if (*next > 0 || p->groups == 0 || is_empty(&p->all)) return NK_OK;
        *next = 1;
        b->kind = sm80_gemm_kind(&p->all.a, &p->all.b);
        b->params.offsets = p->offsets;
        b->params.experts = p->groups;
        b->params.a_sf_bytes = p->a_sf_bytes;
        insert(b, &p->all);
    }
    for (; p->list && *next < p->groups && b->params.count < SM80_GROUPS_PER_LAUNCH; ++*next) {
        const nk_gemm_problem *gemm = &p->list[*next];
        if (is_empty(gemm)) continue;
        int kind = sm80_gemm_kind(&gemm->a, &gemm->b);
        if (b->params.count == 0) b->kind = kind;
        if (kind != b->kind) break;
        insert(b, gemm);
    }
    if (b->params.count == 0) return NK_OK;
    *any = true;
    return choose(p, b);
}

/* Describes the first launch; the workspace serves one after the other. */
nk_status sm80_plan_grouped_gemm(const nk_grouped_gemm_problem *p, nk_plan *plan)
{
    batch b;
    int64_t next = 0, workspace = 0;
    bool any, first = true;
    NK_TRY(next_batch(p, &next, &b, &any));
    for (; any; first = false) {
        if (first) {
            plan->kernel = kernels[b.choice.tile][b.kind].name;
            sm80_gemm_describe(&b.choice, b.kind, OUTPUTS_PER_WARP, plan);
        }
        if (b.choice.workspace_bytes > workspace) workspace = b.choice.workspace_bytes;
        NK_TRY(next_batch(p, &next, &b, &any));
    }
    plan->workspace_bytes = workspace;
    return NK_OK;
}

nk_status sm80_run_grouped_gemm(const nk_grouped_gemm_problem *p, const nk_exec *exec)
{
    batch b;
    int64_t next = 0;
    bool any;
    NK_TRY(next_batch(p, &next, &b, &any));
    while (any) {
        b.params.partials = exec->workspace;
        int32_t threads = 32 * sm80_gemm_tiles[b.choice.tile].warps;
        cuda_grid grid = {b.choice.grid, 1, 1, threads, b.choice.smem_bytes};
        void *args[] = {&b.params};
        NK_TRY(cuda_launch(&kernels[b.choice.tile][b.kind], p->device, exec->stream, &grid, args));
        if (b.params.splits > 1) {
            cuda_grid sum = {b.choice.reduce_grid, 1, 1, threads, SM80_EXPERT_SCAN_BYTES};
            NK_TRY(cuda_launch(&kernels[b.choice.tile][REDUCE], p->device, exec->stream, &sum, args));
        }
        NK_TRY(next_batch(p, &next, &b, &any));
    }
    return NK_OK;
}
