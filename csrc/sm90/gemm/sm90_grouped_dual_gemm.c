/* grouped_dual_gemm on Hopper: tiles of dual_gemm, each with tokens of one expert, or for few rows the gemv. */
#include "sm90/gemv/sm90_gemv_scheduler.h"
#include "sm90_gated_params.h"
#include "sm90_gemm_model.h"

#define KERNELS(name, ...) \
    [SM90_GEMM_##name] = {&sm90_grouped_dual_gemm_##name##_fp16, &sm90_grouped_dual_gemm_##name##_bf16},
static const sm90_gemm_kernels kernels[SM90_GEMM_TILE_COUNT] = {SM90_GROUPED_DUAL_GEMM_TILES(KERNELS)};

#define BIT(name, ...) | (int64_t)1 << SM90_GEMM_##name
#define TILES (0 SM90_GROUPED_DUAL_GEMM_TILES(BIT))

typedef struct gated_choice {
    bool is_gemv;
    union {
        sm90_gemv_choice gemv;
        sm90_gemm_choice product;
    };
} gated_choice;

NK_CHOICE_FITS(gated_choice);

/* What the kernels take: an expert's ups are rows of its matrix, N rows behind its gates. */
static sm90_gated pair_of(const nk_grouped_dual_gemm_problem *p)
{
    const nk_gemm_problem *gates = &p->gates.all;
    sm90_gated pair = {.device = p->device,
                       .m = gates->m,
                       .n = gates->n,
                       .k = gates->k,
                       .a = gates->a,
                       .b1 = gates->b,
                       .b2 = gates->b,
                       .alpha1 = gates->alpha,
                       .alpha2 = p->alpha_ups,
                       .activation = p->activation,
                       .d = gates->d,
                       .encoded = p->encoded};
    const int64_t atoms_bytes = nk_sf_padded_cols(gates->k / NK_SF_VEC) * NK_SF_ATOM_ROWS;
    pair.b2.data += gates->n * gates->b.row_stride;
    pair.b2.sf += gates->b.sf_layout == NK_SF_LINEAR ? gates->n * gates->b.sf_row_stride
                                                     : gates->n / NK_SF_ATOM_ROWS * atoms_bytes;
    return pair;
}

static sm90_gemm_product product_of(const nk_grouped_dual_gemm_problem *p, const sm90_gated *pair)
{
    const nk_grouped_gemm_problem *gates = &p->gates;
    return (sm90_gemm_product){.first = &gates->all,
                               .ups = &pair->b2,
                               .problem = pair,
                               .offsets = gates->offsets,
                               .experts = gates->groups,
                               .token_sf_bytes = gates->a_sf_bytes,
                               .rows = gates->rows,
                               .tiles = TILES};
}

static const char *why_not(const nk_grouped_dual_gemm_problem *p)
{
    const nk_gemm_problem *gates = &p->gates.all;
    if (p->gates.groups == 0) return "there are no experts";
    if (gates->k == 0) return "K is 0";
    if (gates->b.sf_layout == NK_SF_BLOCKED && gates->n % NK_SF_ATOM_ROWS != 0)
        return "blocked scale factors of the ups begin within an atom: N is no multiple of 128";
    return NULL;
}

nk_status sm90_plan_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                                      void *choice)
{
    gated_choice *c = choice;
    const int forced = nk_tile_forced(settings, &sm90_gemm_family);
    const char *why = why_not(p);
    c->is_gemv = false;
    if (why && forced != NK_TILE_ANY) return NK_TILE_REFUSE(&sm90_gemm_family, forced, "%s", why);
    if (why) return nk_decline(plan, why);
    if (settings->batch_invariant && forced == NK_TILE_ANY) /* as sm90_grouped_gemm.c says */
        return nk_decline(plan, "NVFP4KERN_BATCH_INVARIANT=1, which it keeps for some numbers of rows only");
    const sm90_gated pair = pair_of(p);
    const sm90_gemm_product product = product_of(p, &pair);
    if (forced != NK_TILE_ANY) return sm90_gemm_plan(&product, settings, kernels, forced, plan, &c->product);
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const sm90_gemm_pick pick = sm90_gemm_pick_of(&product, gpu, settings->batch_invariant);
    nk_plan by_gemv = *plan;
    const nk_status status = sm90_plan_gemv_gated_experts(p, settings, &by_gemv, &c->gemv);
    c->is_gemv = status == NK_OK && sm90_gemv_wins(settings, &pick, &c->gemv);
    if (c->is_gemv) *plan = by_gemv;
    if (c->is_gemv || (status != NK_OK && status != NK_DECLINED)) return status;
    return sm90_gemm_plan_picked(&product, settings, kernels, &pick, plan, &c->product);
}

nk_status sm90_run_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const gated_choice *c = choice;
    if (c->is_gemv) return sm90_run_gemv_gated_experts(p, &c->gemv, exec);
    const sm90_gated pair = pair_of(p);
    const sm90_gemm_product product = product_of(p, &pair);
    return sm90_gemm_run(&product, &c->product, exec);
}
