/* gemv: chooses how many warps divide K, and launches. */
#include "sm80_gemv_plan.h"

#include "cuda/cuda_encode.h"
#include "sm80_gemv_config.h"

/* [kind of the vector][whether every address is aligned] */
enum { NARROW, WIDE };
static cuda_kernel *const kernels[][2] = {
    {&sm80_gemv_nvfp4_narrow, &sm80_gemv_nvfp4},
    {&sm80_gemv_fp16_narrow, &sm80_gemv_fp16},
    {&sm80_gemv_bf16_narrow, &sm80_gemv_bf16},
};

static cuda_kernel *sm80_gemv_kernel(const nk_gemv_problem *p)
{
    const nk_operand *w = &p->b;
    const bool wide = p->k % SM80_GEMV_CHUNK == 0 && cuda_are_data_aligned(w, p->n, p->l, 16) &&
                      cuda_are_sf_aligned(w, p->n, p->l, w->sf_layout == NK_SF_BLOCKED ? 16 : 2);
    return kernels[p->a.dtype == NK_E2M1X2 ? 0 : p->a.dtype == NK_F16 ? 1 : 2][wide ? WIDE : NARROW];
}

NK_CHOICE_FITS(sm80_gemv_choice);

#define SPLIT_K(name, warps) warps,
static const int8_t split_ks[] = {SM80_GEMV_TILES(SPLIT_K)};
#define TILES ((int)sizeof split_ks)

static void sm80_gemv_describe(const void *of, int tile, nk_tile_info *info)
{
    (void)of;
    info->split_k = split_ks[tile];
}

const nk_family sm80_gemv_family = {
    .row = "sm80", .name = "gemv", .tiles = NK_TILE_NAMES(SM80_GEMV_TILES), .describe = sm80_gemv_describe};

/* How many turns of one row quad a warp has, and how many steps of 1024 elements in all. */
static int64_t turns(int64_t quads, int64_t ctas, int split)
{
    return nk_ceil_div(quads, ctas * (SM80_GEMV_WARPS / split));
}

static int64_t steps(int64_t quads, int64_t slices, int64_t ctas, int split)
{
    return turns(quads, ctas, split) * nk_ceil_div(slices, split);
}

/* Chooses the split of K that ends first. Batch invariance: it depends on K alone. */
static nk_status choose_split_k(const nk_gemv_problem *p, const nk_settings *settings, sm80_gemv_choice *c)
{
    const int forced = nk_tile_forced(settings, &sm80_gemv_family);
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    int64_t chunks = nk_ceil_div(p->k, SM80_GEMV_CHUNK), slices = nk_ceil_div(chunks, 32);
    int64_t quads = sm80_gemv_row_quads(p->n);
    int64_t ctas = (int64_t)gpu->sms * SM80_GEMV_CTAS_PER_SM / (p->l > 0 ? p->l : 1);
    int64_t room = (cuda_smem_per_cta(gpu, SM80_GEMV_CTAS_PER_SM) - SM80_GEMV_PARTIAL_BYTES) / SM80_GEMV_CHUNK_BYTES;
    NK_CHECK(room > 0, NK_BACKEND_ERROR, "cuda:%d: %d bytes of shared memory for a CTA, too little for a gemv",
             gpu->index, gpu->smem_per_cta);
    if (ctas < 1) ctas = 1;
    *c = (sm80_gemv_choice){.kernel = sm80_gemv_kernel(p), .chunks = (int)(chunks < room ? chunks : room)};
    for (int i = 0; i < TILES; i++) {
        const int split = split_ks[i];
        if ((forced != NK_TILE_ANY && forced != i) || (split > 1 && split > slices)) continue;
        bool better = !c->split || steps(quads, slices, ctas, split) < steps(quads, slices, ctas, c->split);
        if (!better && !settings->batch_invariant) continue;
        c->tile = i;
        c->split = split;
    }
    if (!c->split)
        return NK_TILE_REFUSE(&sm80_gemv_family, forced, "K is %lld, too little for %d warps that take %d of it each",
                              (long long)p->k, split_ks[forced], 32 * SM80_GEMV_CHUNK);
    c->quads_per_cta = turns(quads, ctas, c->split) * (SM80_GEMV_WARPS / c->split);
    c->ctas_per_batch = quads ? (int)nk_ceil_div(quads, c->quads_per_cta) : 0;
    return NK_OK;
}

nk_status sm80_plan_gemv(const nk_gemv_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    sm80_gemv_choice *c = choice;
    NK_TRY(choose_split_k(p, settings, c));
    plan->kernel = c->kernel->name;
    plan->why = "one token: weights are read once";
    plan->tile_m = 1;
    plan->tile_n = SM80_GEMV_ROWS;
    plan->tile_k = SM80_GEMV_CHUNK * 32 * c->split;
    plan->grid = p->l * c->ctas_per_batch;
    plan->threads = 32 * SM80_GEMV_WARPS;
    plan->tile = sm80_gemv_family.tiles[c->tile];
    plan->split = c->split;
    /* otherwise the split of K depends on the number of matrices */
    plan->batch_invariant = settings->batch_invariant;
    return NK_OK;
}

nk_status sm80_run_gemv(const nk_gemv_problem *p, const void *choice, const nk_exec *exec)
{
    sm80_gemv_choice c = *(const sm80_gemv_choice *)choice;
    int32_t threads = 32 * SM80_GEMV_WARPS;
    cuda_grid grid = {
        .x = p->l * c.ctas_per_batch, .y = 1, .z = 1, .threads = threads, .smem_bytes = sm80_gemv_smem(c.chunks)};
    void *args[] = {(void *)(uintptr_t)p, &c.split, &c.chunks, &c.ctas_per_batch, &c.quads_per_cta};
    return cuda_launch(c.kernel, p->device, exec->stream, &grid, args);
}
