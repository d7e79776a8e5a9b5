#include "sm80_gemm_plan.h"

const sm80_gemm_tile sm80_gemm_tiles[SM80_GEMM_TILE_COUNT] = {
#define ROW(name, tokens, warps, stages, ctas) [SM80_GEMM_##name] = {#name, tokens, warps, stages, ctas},
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
    int64_t steps = nk_ceil_div(k, SM80_GEMM_STEP(kind));
    return steps ? steps : 1; /* of zeros */
}

static int64_t ctas_per_sm(const sm80_gemm_tile *t, int kind, const cuda_gpu *gpu)
{
    int64_t fit = gpu->smem_per_sm / (smem_of(t, kind) + 1024);
    return fit < t->ctas ? (fit < 1 ? 1 : fit) : t->ctas;
}

/* Microseconds, roughly: fitted to some 1500 launches of all tiles on an H200, within 2 % of the best choice on
 * average. Only ratios matter. */
#define FLOP_PER_US 2.84e6     /* of an SM, with decoding in the same issue slots */
#define DECODE_US 0.048        /* a step's, of 128 weight rows */
#define BYTES_PER_US 19e3      /* of an SM's share of memory */
#define LONE_STEP_US 0.97      /* no CTA walks faster, however empty its SM: latencies and barriers */
#define LONE_TOKEN_US 0.012    /* and for every token of the tile */
#define CTA_US 1.8             /* filling the ring and the epilogue */
#define PART_US 0.5            /* going on to another tile */
#define REDUCE_US 5.0          /* a second launch */
#define SUM_BYTES_PER_US 2.7e6 /* partial sums through L2 and back */
#define MAX_SPLITS 16
#define MIN_SHARE 2

/* One step of K on an SM with `resident` such CTAs. */
static double step_us(const sm80_gemm_tile *t, int64_t resident)
{
    double rows = t->warps * 32, tokens = t->tokens;
    double compute = tokens * rows * SM80_GEMM_STEP(SM80_GEMM_CODES) * 2 / FLOP_PER_US + DECODE_US * rows / 128;
    double memory = (tokens + rows) * 72 / BYTES_PER_US; /* codes and factors */
    double work = (compute > memory ? compute : memory) * (double)resident,
           lone = LONE_STEP_US + LONE_TOKEN_US * tokens;
    return work > lone ? work : lone;
}

/* Microseconds that `work` takes if every CTA does `share` steps of it, or (share = 0) a tile. */
static double launch_us(const sm80_gemm_tile *t, int64_t resident, const cuda_gpu *gpu, sm80_gemm_work work,
                        int64_t share)
{
    double steps = (double)work.steps / (double)work.tiles; /* of a tile, on average */
    int64_t ctas = share ? nk_ceil_div(work.steps, share) : work.tiles, slots = resident * gpu->sms;
    int64_t waves = nk_ceil_div(ctas, slots), crowd = ctas < slots ? nk_ceil_div(ctas, gpu->sms) : resident;
    if (!share) return (double)waves * (steps * step_us(t, crowd) + CTA_US);
    bool aligned = (double)share * (double)nk_ceil_div((int64_t)steps, share) == steps; /* a CTA stays in one tile */
    double others = aligned ? 0 : 1 + (double)(share - 2) / steps;                      /* tiles after the first */
    double bytes = (double)ctas * (aligned ? 1 : 2) * (double)sum_bytes(t);
    double cta = (double)share * step_us(t, crowd) + CTA_US + others * PART_US;
    return (double)waves * cta + REDUCE_US + bytes / SUM_BYTES_PER_US;
}

typedef struct candidate {
    int tile;
    int64_t share;
    double us;
} candidate;

static void consider(candidate c, candidate *best)
{
    if (best->tile < 0 || c.us < best->us) *best = c;
}

/* A tile each, K cut into equal parts, or all steps dealt out to as many CTAs as the GPU holds. */
static void consider_tile(int i, int64_t resident, const cuda_gpu *gpu, sm80_gemm_work work, candidate *best)
{
    const sm80_gemm_tile *t = &sm80_gemm_tiles[i];
    consider((candidate){i, 0, work.tiles ? launch_us(t, resident, gpu, work, 0) : 0}, best);
    /* Else a row's sums would depend on how many tiles there are. */
    if (sm80_batch_invariant() || work.tiles == 0 || work.steps > SM80_MAX_UNITS) return;
    for (int64_t n = 2; n <= MAX_SPLITS + resident; n++) {
        int64_t share = n <= MAX_SPLITS ? nk_ceil_div(work.steps, work.tiles * n)
                                        : nk_ceil_div(work.steps, (n - MAX_SPLITS) * gpu->sms);
        if (share < MIN_SHARE) continue;
        consider((candidate){i, share, launch_us(t, resident, gpu, work, share)}, best);
    }
}

nk_status sm80_gemm_choose(nk_device device, int kind, const sm80_gemm_work work[SM80_GEMM_TILE_COUNT],
                           sm80_gemm_choice *choice)
{
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(device, &gpu));
    candidate best = {.tile = -1};
    for (int i = 0; i < SM80_GEMM_TILE_COUNT; i++) {
        if (smem_of(&sm80_gemm_tiles[i], kind) > gpu->smem_per_cta) continue;
        consider_tile(i, ctas_per_sm(&sm80_gemm_tiles[i], kind, gpu), gpu, work[i], &best);
    }
    NK_CHECK(best.tile >= 0, NK_BACKEND_ERROR, "cuda:%d: %d bytes of shared memory for a CTA, too little for any tile",
             gpu->index, gpu->smem_per_cta);
    const sm80_gemm_tile *t = &sm80_gemm_tiles[best.tile];
    int64_t grid = best.share ? nk_ceil_div(work[best.tile].steps, best.share) : work[best.tile].tiles;
    *choice = (sm80_gemm_choice){
        .tile = best.tile,
        .share = best.share,
        .grid = grid,
        .reduce_grid = best.share ? (grid - 1) * (t->tokens / 8) : 0,
        .smem_bytes = smem_of(t, kind),
        .workspace_bytes = best.share ? 2 * grid * sum_bytes(t) : 0,
    };
    return NK_OK;
}

nk_status sm80_gemm_choose_uniform(nk_device device, int64_t l, int64_t m, int64_t n, int64_t k, int kind,
                                   int outputs_per_warp, sm80_gemm_choice *choice, sm80_gemm_params *params)
{
    int64_t steps = sm80_gemm_steps(k, kind);
    sm80_gemm_work work[SM80_GEMM_TILE_COUNT];
    for (int i = 0; i < SM80_GEMM_TILE_COUNT; i++) {
        const sm80_gemm_tile *t = &sm80_gemm_tiles[i];
        work[i].tiles = l * nk_ceil_div(m, t->tokens) * nk_ceil_div(n, outputs_per_warp * t->warps);
        work[i].steps = work[i].tiles * steps;
    }
    NK_TRY(sm80_gemm_choose(device, kind, work, choice));
    const sm80_gemm_tile *t = &sm80_gemm_tiles[choice->tile];
    *params = (sm80_gemm_params){
        .m_tiles = (uint32_t)nk_ceil_div(m, t->tokens),
        .n_tiles = (uint32_t)nk_ceil_div(n, outputs_per_warp * t->warps),
        .tiles = (uint32_t)work[choice->tile].tiles,
        .steps = (uint32_t)steps,
        .units = choice->share ? (uint32_t)steps : 1,
        .share = choice->share ? (uint32_t)choice->share : 1,
    };
    return NK_OK;
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
    plan->config = choice->tile;
    plan->workspace_bytes = choice->workspace_bytes;
    plan->batch_invariant = sm80_batch_invariant();
}
