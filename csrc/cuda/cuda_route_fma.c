/* route without tensor cores: splits K so that CTAs fill the GPU; launches. */
#include "cuda_route_fma.h"

#include "nk_format.h"

typedef struct fma_tile_config {
    int32_t tokens, experts, step, ctas, smem_bytes;
} fma_tile_config;

static const fma_tile_config tiles[] = {
#define ROW(name, tokens, experts, step, ctas, ...) \
    [ROUTE_##name] = {tokens, experts, step, ctas, ROUTE_FMA_SMEM(tokens, experts, step)},
    ROUTE_FMA_TILES(ROW)
#undef ROW
};

#define LARGE_EXTENT 96       /* from which on the large tile is nearly full */
#define LEAST_K 128           /* of a split */
#define MOST_SPLITS 32        /* since the second launch reads them all */
#define INVARIANT_K 512       /* of a split: a multiple of either tile's step, so that both add in the same order */
#define INVARIANT_SPLITS 1024 /* beyond which splits are longer */

/* How much of K a split has, so that CTAs fill the GPU; with batch_invariant it depends on K alone. */
static int64_t k_per_split(const nk_route_problem *p, const cuda_gpu *gpu, const fma_tile_config *t, bool invariant)
{
    if (invariant) return INVARIANT_K * nk_ceil_div(p->k, (int64_t)INVARIANT_K * INVARIANT_SPLITS);
    const int64_t tiles_there = nk_ceil_div(p->m, t->tokens) * nk_ceil_div(p->n, t->experts);
    const int64_t fit = cuda_ctas_per_sm(gpu, t->smem_bytes), of_sm = fit < t->ctas ? fit : t->ctas;
    const int64_t fitting = of_sm * gpu->sms / tiles_there, wanted = fitting < MOST_SPLITS ? fitting : MOST_SPLITS;
    const int64_t k = nk_ceil_div(p->k, wanted < 1 ? 1 : wanted);
    return k < LEAST_K ? LEAST_K : k;
}

/* Whether one load can take eight elements of every row: they lie in aligned bytes. */
static bool is_wide(const nk_operand *o, int64_t rows)
{
    const uint64_t bits = (uint64_t)(uintptr_t)o->data | (rows > 1 ? (uint64_t)o->row_stride : 0);
    return bits % (o->dtype == NK_F32 ? 32 : 16) == 0;
}

static void plan_multiply(const nk_route_problem *p, const cuda_route_fma_kernels *kernels, const cuda_gpu *gpu,
                          const nk_settings *settings, cuda_route_fma_choice *c, nk_plan *plan)
{
    const int tile = p->m >= LARGE_EXTENT && p->n >= LARGE_EXTENT ? ROUTE_fma128 : ROUTE_fma32;
    const fma_tile_config *t = &tiles[tile];
    const int64_t expert_tiles = nk_ceil_div(p->n, t->experts), steps = nk_ceil_div(p->k, t->step);
    const int64_t k = p->m && steps ? k_per_split(p, gpu, t, settings->batch_invariant) : LEAST_K;
    c->multiplies = kernels->multiply[tile];
    c->params.pitch = (int32_t)(expert_tiles * t->experts);
    c->params.steps = (int32_t)steps;
    c->params.steps_per_split = (int32_t)nk_ceil_div(k, t->step);
    c->params.splits = (int32_t)(steps ? nk_ceil_div(steps, c->params.steps_per_split) : 1);
    c->params.wide_w = is_wide(&p->w, p->n);
    c->params.wide_x = is_wide(&p->x, p->m);
    c->multiply = (cuda_grid){.x = nk_ceil_div(p->m, t->tokens),
                              .y = expert_tiles,
                              .z = c->params.splits,
                              .threads = ROUTE_FMA_THREADS,
                              .smem_bytes = t->smem_bytes,
                              .overlap = settings->pdl != NK_PDL_OFF};
    plan->kernel = c->multiplies->name;
    plan->tile_m = t->tokens;
    plan->tile_n = t->experts;
    plan->tile_k = t->step;
    plan->grid = c->multiply.x * c->multiply.y * c->multiply.z;
    plan->threads = ROUTE_FMA_THREADS;
    plan->stages = 2;
    plan->split = c->params.splits;
    plan->workspace_bytes = c->params.splits * p->m * c->params.pitch * 4;
}

static const char *why_of(const nk_route_problem *p)
{
    if (p->from_logits) return "the logits are given: a warp routes a token";
    if (!nk_route_has_halves(p)) return "fp32 multiply-adds: tensor cores multiply x and w of one 16-bit type alone";
    if (p->k == 0 || p->m == 0) return p->k == 0 ? "K is 0: all logits are zero" : "M is 0";
    return "fp32 multiply-adds: no tensor map describes x and w";
}

nk_status cuda_plan_route_fma(const nk_route_problem *p, const cuda_route_fma_kernels *kernels, const cuda_gpu *gpu,
                              const nk_settings *settings, nk_plan *plan, cuda_route_fma_choice *choice)
{
    const int64_t fair = nk_ceil_div(p->m, gpu->sms), most = ROUTE_SELECT_WARPS;
    *choice = (cuda_route_fma_choice){.selects = p->from_logits ? kernels->select : kernels->select_sums,
                                      .params = {.pitch = (int32_t)nk_ceil_div(p->n, 4) * 4,
                                                 .turn_tokens = (int32_t)(fair < 1      ? 1
                                                                          : fair > most ? most
                                                                                        : fair),
                                                 .scratch_experts = ROUTE_SCRATCH_EXPERTS((int32_t)p->n)}};
    route_fma_params *params = &choice->params;
    choice->select = (cuda_grid){.x = nk_ceil_div(p->m, params->turn_tokens),
                                 .y = 1,
                                 .z = 1,
                                 .threads = ROUTE_SELECT_THREADS,
                                 .smem_bytes = params->turn_tokens * ROUTE_SCRATCH_BYTES(params->scratch_experts),
                                 .overlap = settings->pdl != NK_PDL_OFF};
    plan->kernel = choice->selects->name;
    plan->why = why_of(p);
    plan->tile_m = params->turn_tokens;
    plan->tile_n = p->n;
    plan->grid = choice->select.x;
    plan->threads = ROUTE_SELECT_THREADS;
    plan->batch_invariant = settings->batch_invariant || p->from_logits;
    if (!p->from_logits) plan_multiply(p, kernels, gpu, settings, choice, plan);
    NK_CHECK(choice->select.x <= INT32_MAX && choice->multiply.x <= INT32_MAX, NK_VALUE_ERROR,
             "route: %lld tokens are more than one launch can have", (long long)p->m);
    return NK_OK;
}

nk_status cuda_run_route_fma(const nk_route_problem *p, const cuda_route_fma_choice *choice, const nk_exec *exec)
{
    route_fma_params params = choice->params;
    void *args[] = {(void *)(uintptr_t)p, &params};
    params.partials = exec->workspace;
    if (p->m == 0) return NK_OK; /* there may be an empty permutation to make */
    if (choice->multiplies) NK_TRY(cuda_launch(choice->multiplies, p->device, exec->stream, &choice->multiply, args));
    return cuda_launch(choice->selects, p->device, exec->stream, &choice->select, args);
}
