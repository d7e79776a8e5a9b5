#include "sm80_gemm_plan.h"

#include <string.h>

const sm80_gemm_tile sm80_gemm_tiles[SM80_GEMM_TILE_COUNT] = {
#define ROW(name, tokens, warps, stages, ctas) [SM80_GEMM_##name] = {tokens, warps, stages, ctas},
    SM80_GEMM_TILES(ROW)
#undef ROW
};

int sm80_gemm_kind(const nk_operand *a, const nk_operand *b)
{
    bool bfloat = a->dtype == NK_BF16;
    if (b->dtype != NK_E2M1X2) return bfloat ? SM80_GEMM_PLAIN_BFLOATS : SM80_GEMM_PLAIN_HALVES;
    return a->dtype == NK_E2M1X2 ? SM80_GEMM_CODES : bfloat ? SM80_GEMM_BFLOATS : SM80_GEMM_HALVES;
}

static int32_t smem_of(const sm80_gemm_tile *t, int kind)
{
    return SM80_GEMM_SMEM(t->tokens, t->warps, t->stages, kind);
}

static int64_t sum_bytes(const sm80_gemm_tile *t) { return (int64_t)t->tokens * t->warps * 32 * 4; }

int64_t sm80_gemm_steps(int64_t k, int kind)
{
    int64_t steps = sm80_cover(k, SM80_GEMM_STEP(kind));
    return steps ? steps : 1; /* of zeros */
}

static int ctas_per_sm(const sm80_gemm_tile *t, int kind, const cuda_gpu *gpu)
{
    int fit = gpu->smem_per_sm / (smem_of(t, kind) + 1024);
    return fit < t->ctas ? (fit < 1 ? 1 : fit) : t->ctas;
}

/* Microseconds, roughly: fitted to 1200 launches of all tiles with NVFP4 tokens on an H200, within 1 % of the best
 * choice on average, 8 % at worst, before the second launch overlapped the first. Only ratios matter. */
#define FLOP_PER_US 2.88e6     /* of an SM, with decoding in the same issue slots */
#define DECODE_US 0.11         /* a step's, of 128 weight rows */
#define BYTES_PER_US 23e3      /* of an SM's share of memory */
#define LONE_STEP_US 0.78      /* no CTA walks faster, however empty its SM: latencies and barriers */
#define LONE_TOKEN_US 0.008    /* and for every token of the tile */
#define NEIGHBOUR 0.45         /* how much of that a further CTA of the SM adds */
#define CTA_US 0.5             /* filling the ring and the epilogue */
#define PART_US 0.24           /* going on to another tile */
#define REDUCE_US 6.3          /* a second launch */
#define SUM_BYTES_PER_US 2.7e6 /* partial sums through L2 and back */
#define MIN_SHARE 2
#define DEALINGS 8 /* of a tile: more than CTAs an SM can hold */

/* One step of K on an SM with `resident` such CTAs. */
static double step_us(const sm80_gemm_tile *t, int64_t resident)
{
    double rows = t->warps * 32, tokens = t->tokens;
    double compute =
        tokens * rows * SM80_GEMM_STEP(SM80_GEMM_CODES) * 2 * (1 / FLOP_PER_US) + DECODE_US * rows * (1.0 / 128);
    double memory = (tokens + rows) * 72 * (1 / BYTES_PER_US); /* codes and factors */
    double work = (compute > memory ? compute : memory) * (double)resident;
    double lone = (LONE_STEP_US + LONE_TOKEN_US * tokens) * (1 + NEIGHBOUR * (double)(resident - 1));
    return work > lone ? work : lone;
}

/* 64-bit divisions would be most of a plan's time. */
static int64_t ceil_div(int64_t x, int64_t y)
{
    if (x > INT32_MAX || y > INT32_MAX) return nk_ceil_div(x, y);
    return (int64_t)(((uint32_t)x + (uint32_t)y - 1) / (uint32_t)y);
}

/* Steps that a CTA takes of `work`, or 0: a tile each. `dealing` is 0 for that, else how many CTAs an SM gets. */
static int64_t share_of(sm80_gemm_work work, int dealing, const cuda_gpu *gpu)
{
    return dealing ? ceil_div(work.steps, dealing * gpu->sms) : 0;
}

/* Microseconds that `work` takes. */
static double launch_us(const sm80_gemm_tile *t, int resident, const cuda_gpu *gpu, sm80_gemm_work work, int dealing)
{
    double steps = (double)work.steps / (double)work.tiles; /* of a tile, on average */
    int64_t share = share_of(work, dealing, gpu);
    int32_t slots = resident * gpu->sms;
    if (!share) {
        int64_t waves = ceil_div(work.tiles, slots);
        int64_t crowd = work.tiles < slots ? ceil_div(work.tiles, gpu->sms) : resident;
        return (double)waves * (steps * step_us(t, crowd) + CTA_US);
    }
    bool aligned = share * ceil_div((int64_t)steps, share) * work.tiles == work.steps;
    double others = aligned ? 0 : 1 + (double)(share - MIN_SHARE) / steps; /* tiles of a CTA after its first */
    double sums = (double)work.steps / (double)share * (aligned ? 1 : 2) * (double)sum_bytes(t);
    double cta = (double)share * step_us(t, dealing) + CTA_US + others * PART_US;
    return cta + REDUCE_US + sums * (1 / SUM_BYTES_PER_US);
}

typedef struct candidate {
    int tile, dealing;
    double us;
} candidate;

static void consider(candidate c, candidate *best)
{
    if (best->tile < 0 || c.us < best->us) *best = c;
}

/* A tile each, or all steps dealt out to as many CTAs as fill the GPU once, twice, .. */
static void consider_tile(int i, int kind, const cuda_gpu *gpu, bool invariant, sm80_gemm_work work, candidate *best)
{
    const sm80_gemm_tile *t = &sm80_gemm_tiles[i];
    int resident = ctas_per_sm(t, kind, gpu);
    consider((candidate){i, 0, work.tiles ? launch_us(t, resident, gpu, work, 0) : 0}, best);
    /* Else a row's sums would depend on how many tiles there are. */
    if (invariant || work.tiles == 0 || work.steps > SM80_MAX_UNITS) return;
    for (int dealing = 1; dealing <= resident; dealing++) {
        if (share_of(work, dealing, gpu) < MIN_SHARE) break;
        consider((candidate){i, dealing, launch_us(t, resident, gpu, work, dealing)}, best);
    }
}

/* All that a choice depends on. */
typedef struct question {
    const cuda_gpu *gpu;
    int32_t kind, invariant;
    sm80_gemm_work work[SM80_GEMM_TILE_COUNT];
} question;

static candidate pick(const question *q)
{
    candidate best = {.tile = -1};
    for (int i = 0; i < SM80_GEMM_TILE_COUNT; i++) {
        if (smem_of(&sm80_gemm_tiles[i], q->kind) <= q->gpu->smem_per_cta)
            consider_tile(i, q->kind, q->gpu, q->invariant, q->work[i], &best);
    }
    return best;
}

#define ANSWERS 16

nk_status sm80_gemm_choose(nk_device device, int kind, const sm80_gemm_work work[SM80_GEMM_TILE_COUNT], int *config)
{
    static _Thread_local struct {
        question asked;
        candidate best;
    } answers[ANSWERS]; /* the next calls ask the same, and picking takes a fifth of a call */
    question q = {.kind = kind};
    NK_TRY(cuda_gpu_of(device, &q.gpu));
    q.invariant = nk_settings_of_call()->batch_invariant;
    memcpy(q.work, work, sizeof q.work);
    int at = (int)((uint64_t)(work[0].tiles * 5 + work[0].steps) % ANSWERS);
    if (memcmp(&answers[at].asked, &q, sizeof q) != 0) {
        answers[at].asked = q;
        answers[at].best = pick(&q);
    }
    const candidate best = answers[at].best;
    NK_CHECK(best.tile >= 0, NK_BACKEND_ERROR, "cuda:%d: %d bytes of shared memory for a CTA, too little for any tile",
             q.gpu->index, q.gpu->smem_per_cta);
    *config = best.tile * DEALINGS + best.dealing;
    return NK_OK;
}

const sm80_gemm_tile *sm80_gemm_tile_of(int config) { return &sm80_gemm_tiles[config / DEALINGS]; }

nk_status sm80_gemm_settle(nk_device device, int kind, int config, sm80_gemm_work work, sm80_gemm_choice *choice)
{
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(device, &gpu));
    const sm80_gemm_tile *t = sm80_gemm_tile_of(config);
    int64_t share = share_of(work, config % DEALINGS, gpu), grid = share ? nk_ceil_div(work.steps, share) : work.tiles;
    *choice = (sm80_gemm_choice){
        .tile = config / DEALINGS,
        .share = share,
        .grid = grid,
        .reduce_grid = share ? (grid - 1) * (t->tokens / 8) : 0,
        .smem_bytes = smem_of(t, kind),
        .workspace_bytes = share ? 2 * grid * sum_bytes(t) : 0,
    };
    return NK_OK;
}

static sm80_gemm_work work_of(const sm80_product *p, const sm80_gemm_tile *t)
{
    int64_t tiles = p->l * sm80_cover(p->m, t->tokens) * sm80_cover(p->n, p->outputs_per_warp * t->warps);
    return (sm80_gemm_work){tiles, tiles * sm80_gemm_steps(p->k, p->kind)};
}

nk_status sm80_gemm_plan(nk_device device, const sm80_product *p, const sm80_gemm_kernels *kernels, nk_plan *plan)
{
    sm80_gemm_work work[SM80_GEMM_TILE_COUNT];
    for (int i = 0; i < SM80_GEMM_TILE_COUNT; i++)
        work[i] = work_of(p, &sm80_gemm_tiles[i]);
    sm80_gemm_choice choice;
    NK_TRY(sm80_gemm_choose(device, p->kind, work, &plan->config));
    NK_TRY(sm80_gemm_settle(device, p->kind, plan->config, work[plan->config / DEALINGS], &choice));
    plan->kernel = kernels[choice.tile][p->kind]->name;
    sm80_gemm_describe(&choice, p->kind, p->outputs_per_warp, plan);
    return NK_OK;
}

nk_status sm80_gemm_run(nk_device device, const sm80_product *p, const sm80_gemm_kernels *kernels, const void *problem,
                        const nk_exec *exec)
{
    const sm80_gemm_tile *t = sm80_gemm_tile_of(exec->plan.config);
    sm80_gemm_work work = work_of(p, t);
    sm80_gemm_choice choice;
    NK_TRY(sm80_gemm_settle(device, p->kind, exec->plan.config, work, &choice));
    uint32_t steps = (uint32_t)sm80_gemm_steps(p->k, p->kind);
    sm80_gemm_params params = {
        .m_tiles = (uint32_t)sm80_cover(p->m, t->tokens),
        .n_tiles = (uint32_t)sm80_cover(p->n, p->outputs_per_warp * t->warps),
        .tiles = (uint32_t)work.tiles,
        .steps = steps,
        .units = choice.share ? steps : 1,
        .share = choice.share ? (uint32_t)choice.share : 1,
        .partials = exec->workspace,
    };
    cuda_grid grid = {.x = choice.grid, .y = 1, .z = 1, .threads = 32 * t->warps, .smem_bytes = choice.smem_bytes};
    void *args[] = {(void *)(uintptr_t)problem, &params};
    NK_TRY(cuda_launch(kernels[choice.tile][p->kind], device, exec->stream, &grid, args));
    if (choice.reduce_grid == 0) return NK_OK;
    cuda_grid sum = {.x = choice.reduce_grid,
                     .y = 1,
                     .z = 1,
                     .threads = 32 * t->warps,
                     .overlap = cuda_pdl_wanted() != CUDA_PDL_OFF};
    return cuda_launch(kernels[choice.tile][SM80_GEMM_FP4_KINDS], device, exec->stream, &sum, args);
}

void sm80_gemm_describe(const sm80_gemm_choice *choice, int kind, int outputs_per_warp, nk_plan *plan)
{
    const sm80_gemm_tile *t = &sm80_gemm_tiles[choice->tile];
    plan->why = choice->share
                    ? "all steps of K dealt out evenly to CTAs; a second kernel adds the parts of shared tiles"
                    : "a tile for each CTA";
    plan->tile_m = t->tokens;
    plan->tile_n = outputs_per_warp * t->warps;
    plan->tile_k = SM80_GEMM_STEP(kind);
    plan->grid = choice->grid;
    plan->threads = 32 * t->warps;
    plan->stages = t->stages;
    plan->workspace_bytes = choice->workspace_bytes;
    plan->batch_invariant = nk_settings_of_call()->batch_invariant;
}
