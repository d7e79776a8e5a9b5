/* Deals the steps of a product out to CTAs, and launches what was dealt. */
#include "sm80_gemm_plan.h"

#include "nk_memo.h"
#include "sm80_gemm_model.h"

const sm80_gemm_tile sm80_gemm_tiles[SM80_GEMM_TILE_COUNT] = {
#define ROW(name, tokens, warps, stages, ctas) [SM80_GEMM_##name] = {tokens, warps, stages, ctas},
    SM80_GEMM_TILES(ROW)
#undef ROW
};

#define NAME(name, ...) #name,
const nk_family sm80_gemm_family = {"sm80", "gemm", (const char *const[]){SM80_GEMM_TILES(NAME) NULL}, NULL};

int sm80_gemm_kind(const nk_operand *a, const nk_operand *b)
{
    bool bfloat = a->dtype == NK_BF16;
    if (b->dtype != NK_E2M1X2) return bfloat ? SM80_GEMM_PLAIN_BF16 : SM80_GEMM_PLAIN_FP16;
    return a->dtype == NK_E2M1X2 ? SM80_GEMM_NVFP4 : bfloat ? SM80_GEMM_BF16 : SM80_GEMM_FP16;
}

static int32_t smem_of(const sm80_gemm_tile *t, int kind)
{
    return SM80_GEMM_SMEM(t->tokens, t->warps, t->stages, kind);
}

/* With what is static. */
static int32_t cta_smem(const sm80_gemm_tile *t, int kind) { return smem_of(t, kind) + SM80_GEMM_STATIC_BYTES; }

int64_t sm80_gemm_steps(int64_t k, int kind)
{
    int64_t steps = sm80_cover(k, SM80_GEMM_STEP(kind));
    return steps ? steps : 1; /* of zeros */
}

static int ctas_per_sm(const sm80_gemm_tile *t, int kind, const cuda_gpu *gpu)
{
    int fit = cuda_ctas_per_sm(gpu, cta_smem(t, kind));
    return fit < t->ctas ? (fit < 1 ? 1 : fit) : t->ctas;
}

typedef struct candidate {
    int tile, per_sm;
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
    consider((candidate){i, 0, work.tiles ? sm80_gemm_launch_us(t, resident, gpu, work, 0) : 0}, best);
    /* Else a row's sums would depend on how many tiles there are. */
    if (invariant || work.tiles == 0 || work.steps > SM80_MAX_UNITS) return;
    for (int per_sm = 1; per_sm <= resident; per_sm++) {
        if (sm80_gemm_steps_per_cta(work, per_sm, gpu) < SM80_GEMM_MIN_STEPS_PER_CTA) break;
        consider((candidate){i, per_sm, sm80_gemm_launch_us(t, resident, gpu, work, per_sm)}, best);
    }
}

/* All that a choice depends on. */
typedef struct question {
    const cuda_gpu *gpu;
    int16_t kind, invariant;
    int32_t forced; /* a tile, or NK_TILE_ANY */
    sm80_gemm_work work[SM80_GEMM_TILE_COUNT];
} question;

static sm80_gemm_dealing dealing_of(const question *q, candidate c)
{
    if (c.tile < 0) return (sm80_gemm_dealing){.tile = c.tile};
    const sm80_gemm_tile *t = &sm80_gemm_tiles[c.tile];
    const sm80_gemm_work work = q->work[c.tile];
    int64_t steps_per_cta = sm80_gemm_steps_per_cta(work, c.per_sm, q->gpu),
            grid = steps_per_cta ? nk_ceil_div(work.steps, steps_per_cta) : work.tiles;
    return (sm80_gemm_dealing){
        .tile = c.tile,
        .steps_per_cta = steps_per_cta,
        .grid = grid,
        .reduce_grid = steps_per_cta ? (grid - 1) * (t->tokens / 8) : 0,
        .smem_bytes = smem_of(t, q->kind),
        .workspace_bytes = steps_per_cta ? 2 * grid * sm80_gemm_sum_bytes(t) : 0,
    };
}

static sm80_gemm_dealing pick(const question *q)
{
    candidate best = {.tile = -1};
    for (int i = 0; i < SM80_GEMM_TILE_COUNT; i++) {
        const bool asked = q->forced == NK_TILE_ANY || q->forced == i;
        if (asked && q->work[i].tiles >= 0 && cta_smem(&sm80_gemm_tiles[i], q->kind) <= q->gpu->smem_per_cta)
            consider_tile(i, q->kind, q->gpu, q->invariant, q->work[i], &best);
    }
    return dealing_of(q, best);
}

sm80_gemm_rules sm80_gemm_rules_of(const nk_settings *settings)
{
    return (sm80_gemm_rules){
        .forced = nk_tile_forced(settings, &sm80_gemm_family),
        .batch_invariant = settings->batch_invariant,
        .overlap = settings->pdl != NK_PDL_OFF,
    };
}

nk_status sm80_gemm_deal(nk_device device, sm80_gemm_rules rules, int kind,
                         const sm80_gemm_work work[SM80_GEMM_TILE_COUNT], sm80_gemm_dealing *dealing)
{
    NK_MEMO(question, sm80_gemm_dealing, memo); /* the next calls ask the same, and picking takes a fifth of a call */
    question q = {.kind = (int16_t)kind, .invariant = rules.batch_invariant, .forced = rules.forced};
    NK_TRY(cuda_gpu_of(device, &q.gpu));
    memcpy(q.work, work, sizeof q.work);
    const size_t at = nk_memo_slot(&q, sizeof q);
    if (memcmp(&memo[at].asked, &q, sizeof q) != 0) {
        memo[at].answer = pick(&q);
        memo[at].asked = q;
    }
    *dealing = memo[at].answer;
    if (q.forced != NK_TILE_ANY && work[q.forced].tiles < 0)
        return NK_TILE_REFUSE(&sm80_gemm_family, q.forced, "%s", "the operator has no kernel of it");
    if (dealing->tile < 0 && q.forced != NK_TILE_ANY)
        return NK_TILE_REFUSE(&sm80_gemm_family, q.forced, "its CTA takes %d bytes of shared memory, cuda:%d has %d",
                              cta_smem(&sm80_gemm_tiles[q.forced], kind), q.gpu->index, q.gpu->smem_per_cta);
    NK_CHECK(dealing->tile >= 0, NK_BACKEND_ERROR,
             "cuda:%d: %d bytes of shared memory for a CTA, too little for any tile", q.gpu->index,
             q.gpu->smem_per_cta);
    return NK_OK;
}

static sm80_gemm_work work_of(const sm80_product *p, const sm80_gemm_tile *t)
{
    int64_t tiles = p->l * sm80_cover(p->m, t->tokens) * sm80_cover(p->n, p->outputs_per_warp * t->warps);
    return (sm80_gemm_work){tiles, tiles * sm80_gemm_steps(p->k, p->kind)};
}

nk_status sm80_gemm_plan(const sm80_product *p, const nk_settings *settings, const sm80_gemm_kernels *kernels,
                         nk_plan *plan, sm80_gemm_choice *choice)
{
    sm80_gemm_work work[SM80_GEMM_TILE_COUNT];
    for (int i = 0; i < SM80_GEMM_TILE_COUNT; i++)
        work[i] = work_of(p, &sm80_gemm_tiles[i]);
    const sm80_gemm_rules rules = sm80_gemm_rules_of(settings);
    sm80_gemm_dealing d;
    NK_TRY(sm80_gemm_deal(p->device, rules, p->kind, work, &d));
    const sm80_gemm_tile *t = &sm80_gemm_tiles[d.tile];
    const int32_t threads = 32 * t->warps;
    uint32_t steps = (uint32_t)sm80_gemm_steps(p->k, p->kind);
    *choice = (sm80_gemm_choice){
        .multiply = kernels[d.tile][p->kind],
        .reduce = kernels[d.tile][SM80_GEMM_FP4_KINDS],
        .grid = {.x = d.grid, .y = 1, .z = 1, .threads = threads, .smem_bytes = d.smem_bytes},
        .reduce_grid = {.x = d.reduce_grid, .y = 1, .z = 1, .threads = threads, .overlap = rules.overlap},
        .params =
            {
                .m_tiles = (uint32_t)sm80_cover(p->m, t->tokens),
                .n_tiles = (uint32_t)sm80_cover(p->n, p->outputs_per_warp * t->warps),
                .tiles = (uint32_t)work[d.tile].tiles,
                .k_steps = steps,
                .iters_per_tile = d.steps_per_cta ? steps : 1,
                .iters_per_cta = d.steps_per_cta ? (uint32_t)d.steps_per_cta : 1,
            },
    };
    plan->kernel = choice->multiply->name;
    sm80_gemm_describe(&d, rules, p->kind, p->outputs_per_warp, plan);
    return NK_OK;
}

nk_status sm80_gemm_run(nk_device device, const void *problem, const sm80_gemm_choice *choice, const nk_exec *exec)
{
    sm80_gemm_scheduler params = choice->params;
    params.partials = exec->workspace;
    void *args[] = {(void *)(uintptr_t)problem, &params};
    NK_TRY(cuda_launch(choice->multiply, device, exec->stream, &choice->grid, args));
    if (choice->reduce_grid.x == 0) return NK_OK;
    return cuda_launch(choice->reduce, device, exec->stream, &choice->reduce_grid, args);
}

void sm80_gemm_describe(const sm80_gemm_dealing *dealing, sm80_gemm_rules rules, int kind, int outputs_per_warp,
                        nk_plan *plan)
{
    const sm80_gemm_tile *t = &sm80_gemm_tiles[dealing->tile];
    plan->why = dealing->steps_per_cta
                    ? "all steps of K dealt out evenly to CTAs; a second kernel adds the parts of split tiles"
                    : "a tile for each CTA";
    plan->tile_m = t->tokens;
    plan->tile_n = outputs_per_warp * t->warps;
    plan->tile_k = SM80_GEMM_STEP(kind);
    plan->grid = dealing->grid;
    plan->threads = 32 * t->warps;
    plan->stages = t->stages;
    plan->tile = sm80_gemm_family.tiles[dealing->tile];
    plan->steps_per_cta = dealing->steps_per_cta;
    plan->workspace_bytes = dealing->workspace_bytes;
    plan->batch_invariant = rules.batch_invariant;
}
