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

static int64_t ctas_per_sm(const sm80_gemm_tile *t, int kind, const cuda_gpu *gpu)
{
    int64_t fit = gpu->smem_per_sm / (smem_of(t, kind) + 1024);
    return fit < t->ctas ? (fit < 1 ? 1 : fit) : t->ctas;
}

/* Microseconds, roughly; fitted to every tile and split of 21 products on an H200. Only ratios matter. */
#define FLOP_PER_US 2.87e6     /* of an SM, with decoding in the same issue slots */
#define DECODE_US 0.113        /* a step's, of 128 weight rows */
#define BYTES_PER_US 20e3      /* of an SM's share of memory */
#define LONE_STEP_US 0.69      /* no CTA walks faster, however empty its SM: latencies and barriers */
#define LONE_TOKEN_US 0.016    /* and for every token of the tile */
#define CTA_US 2.6             /* filling the ring and the epilogue */
#define SPLIT_COST_US 3.8      /* a second launch */
#define SUM_BYTES_PER_US 4.3e6 /* partial sums through L2 and back */
#define MAX_SPLITS 16

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

typedef struct candidate {
    int tile, splits;
    double us;
} candidate;

static void consider(candidate c, candidate *best)
{
    if (best->tile < 0 || c.us < best->us) *best = c;
}

nk_status sm80_gemm_choose(nk_device device, int64_t l, int64_t m, int64_t n, int64_t k, int kind, int outputs_per_warp,
                           sm80_gemm_choice *choice)
{
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(device, &gpu));
    const int64_t steps = nk_ceil_div(k, SM80_GEMM_STEP(kind));
    const bool invariant = sm80_batch_invariant();
    candidate best = {.tile = -1};
    for (int i = 0; i < SM80_GEMM_TILE_COUNT; i++) {
        const sm80_gemm_tile *t = &sm80_gemm_tiles[i];
        if (smem_of(t, kind) > gpu->smem_per_cta) continue;
        const int64_t resident = ctas_per_sm(t, kind, gpu), slots = resident * gpu->sms;
        const int64_t tiles = l * nk_ceil_div(m, t->tokens) * nk_ceil_div(n, outputs_per_warp * t->warps);
        for (int splits = 1; splits <= MAX_SPLITS && (splits == 1 || splits * 2 <= steps); splits++) {
            if (invariant && splits > 1) break; /* a row's sums must not depend on how many tiles there are */
            const int64_t ctas = tiles * splits, waves = nk_ceil_div(ctas, slots);
            const int64_t crowd = ctas < slots ? nk_ceil_div(ctas, gpu->sms) : resident;
            double us = (double)waves * ((double)nk_ceil_div(steps, splits) * step_us(t, crowd) + CTA_US);
            if (splits > 1) us += SPLIT_COST_US + (double)ctas * t->tokens * t->warps * 32 * 4 / SUM_BYTES_PER_US;
            consider((candidate){i, splits, us}, &best);
        }
    }
    NK_CHECK(best.tile >= 0, NK_BACKEND_ERROR, "cuda:%d: %d bytes of shared memory for a CTA, too little for any tile",
             gpu->index, gpu->smem_per_cta);
    const sm80_gemm_tile *t = &sm80_gemm_tiles[best.tile];
    const int64_t per_split = nk_ceil_div(steps, best.splits);
    const int64_t splits = per_split ? nk_ceil_div(steps, per_split) : 1; /* none without a step */
    sm80_gemm_params params = {
        .m_tiles = (uint32_t)nk_ceil_div(m, t->tokens),
        .n_tiles = (uint32_t)nk_ceil_div(n, outputs_per_warp * t->warps),
        .steps = (int)steps,
        .steps_per_split = (int)per_split,
        .splits = (int)splits,
    };
    const int64_t tiles = l * nk_ceil_div(m, t->tokens) * nk_ceil_div(n, outputs_per_warp * t->warps);
    *choice = (sm80_gemm_choice){
        .tile = best.tile,
        .smem_bytes = smem_of(t, kind),
        .grid = tiles * splits,
        .reduce_grid = tiles * (t->tokens / 8),
        .params = params,
        .workspace_bytes = splits > 1 ? tiles * splits * t->tokens * t->warps * 32 * 4 : 0,
        .batch_invariant = invariant,
    };
    return NK_OK;
}

void sm80_gemm_describe(const sm80_gemm_choice *choice, int kind, int outputs_per_warp, nk_plan *plan)
{
    const sm80_gemm_tile *t = &sm80_gemm_tiles[choice->tile];
    plan->why = choice->params.splits > 1 ? "K is split: too few tiles for all SMs; a second kernel adds the parts"
                                          : "enough tiles for all SMs";
    plan->tile_m = t->tokens;
    plan->tile_n = outputs_per_warp * t->warps;
    plan->tile_k = SM80_GEMM_STEP(kind);
    plan->grid = choice->grid;
    plan->threads = 32 * t->warps;
    plan->stages = t->stages;
    plan->config = choice->tile;
    plan->workspace_bytes = choice->workspace_bytes;
    plan->batch_invariant = choice->batch_invariant;
}
