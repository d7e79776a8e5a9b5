/* grouped_gemm on Hopper. Contiguous: the tiles of gemm, each with tokens of one expert, or for few rows the gemv, or,
 * of 16-bit weights, the tiles of sm90/kind_f16. Lists: one launch for all groups, or a gemm for each, one after the
 * other. */
#include "sm90/gemv/sm90_gemv_scheduler.h"
#include "sm90/kind_f16/sm90_kind_f16.h"
#include "sm90_gemm_model.h"
#include "sm90_list.h"

#define WEIGHTS "the weights of sm90/gemm are NVFP4"

#define KERNELS(name, ...) [SM90_GEMM_##name] = {&sm90_grouped_gemm_##name##_fp16, &sm90_grouped_gemm_##name##_bf16},
static const sm90_gemm_kernels kernels[SM90_GEMM_TILE_COUNT] = {SM90_GEMM_PERSISTENT_TILES(KERNELS)};

typedef struct grouped_choice {
    bool is_one_launch; /* a list */
    bool is_gemv;       /* experts */
    union {
        sm90_gemv_choice gemv;
        sm90_gemm_choice product;
        sm90_list_choice list;
        sm90_kind_f16_choice halves;
        nk_settings
            settings; /* of a list apart, whose groups are planned again when they run: there may be any number */
    };
} grouped_choice;

NK_CHOICE_FITS(grouped_choice);

/* ---------------------------------------------------------------------------------------------------------------- */
/* Contiguous                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

static sm90_gemm_product product_of(const nk_grouped_gemm_problem *p)
{
    return (sm90_gemm_product){.first = &p->all,
                               .problem = &p->all,
                               .offsets = p->offsets,
                               .experts = p->groups,
                               .token_sf_bytes = p->a_sf_bytes,
                               .rows = p->rows};
}

static bool are_halves(const nk_grouped_gemm_problem *p) { return !p->list && p->all.b.dtype != NK_E2M1X2; }

static const char *why_not(const nk_grouped_gemm_problem *p) { return p->groups == 0 ? "there are no experts" : NULL; }

static nk_status plan_experts(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                              grouped_choice *c)
{
    const int forced = nk_tile_forced(settings, &sm90_gemm_family);
    const sm90_gemm_product product = product_of(p);
    if (forced != NK_TILE_ANY) return sm90_gemm_plan(&product, settings, kernels, forced, plan, &c->product);
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const sm90_gemm_pick pick = sm90_gemm_pick_of(&product, gpu, settings->batch_invariant);
    nk_plan by_gemv = *plan;
    const nk_status status = sm90_plan_gemv_experts(p, settings, &by_gemv, &c->gemv);
    c->is_gemv = status == NK_OK && sm90_gemv_wins(settings, &pick, &c->gemv);
    if (c->is_gemv) *plan = by_gemv;
    if (c->is_gemv || (status != NK_OK && status != NK_DECLINED)) return status;
    return sm90_gemm_plan_picked(&product, settings, kernels, &pick, plan, &c->product);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Lists                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

static const char *why_not_list(const nk_grouped_gemm_problem *p, const nk_settings *settings)
{
    for (int64_t g = 0; g < p->groups; g++)
        if (p->list[g].b.dtype != NK_E2M1X2) return WEIGHTS;
    if (nk_tile_forced(settings, &sm90_gemv_family) != NK_TILE_ANY) return "no tile of sm90/gemv serves all groups";
    return NULL;
}

static bool is_empty(const nk_gemm_problem *p) { return p->l * p->m * p->n == 0; }

/* As long as each group has work for half of the GPU: small ones are faster all at once. `why` is a plan's. */
static nk_status plan_apart(const nk_grouped_gemm_problem *p, const nk_settings *settings, const char *why,
                            nk_plan *plan)
{
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const bool forced = nk_tile_forced(settings, &sm90_gemm_family) != NK_TILE_ANY;
    nk_plan first = {0};
    for (int64_t g = 0; g < p->groups; g++) {
        if (is_empty(&p->list[g])) continue;
        nk_plan group = *plan;
        _Alignas(NK_CHOICE_ALIGNMENT) unsigned char choice[NK_CHOICE_BYTES];
        const nk_status status = sm90_plan_gemm(&p->list[g], settings, &group, choice);
        if (status == NK_DECLINED) return nk_decline(plan, group.declined);
        NK_TRY(status);
        if (!forced && group.grid < gpu->sms / 2)
            return nk_decline(plan, "groups with too little work for half of the GPU are faster all at once");
        const int64_t most =
            group.workspace_bytes > first.workspace_bytes ? group.workspace_bytes : first.workspace_bytes;
        if (!first.kernel) first = group;
        first.workspace_bytes = most;
    }
    if (!first.kernel) return nk_decline(plan, "no group has anything to multiply");
    *plan = first;
    plan->why = why;
    return NK_OK;
}

static nk_status plan_list(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                           grouped_choice *c)
{
    const char *apart = "a gemm for each group, one after the other: a tile is forced; this is the first one's";
    if (nk_tile_forced(settings, &sm90_gemm_family) == NK_TILE_ANY)
        NK_TRY(sm90_list_plan(p, settings, plan, &c->list, &apart));
    c->is_one_launch = !apart;
    if (!apart) return NK_OK;
    c->settings = *settings;
    return plan_apart(p, settings, apart, plan);
}

static nk_status run_apart(const nk_grouped_gemm_problem *p, const nk_settings *settings, const nk_exec *exec)
{
    for (int64_t g = 0; g < p->groups; g++) {
        if (is_empty(&p->list[g])) continue;
        nk_plan group = {0};
        _Alignas(NK_CHOICE_ALIGNMENT) unsigned char choice[NK_CHOICE_BYTES];
        NK_TRY(sm90_plan_gemm(&p->list[g], settings, &group, choice));
        NK_TRY(sm90_run_gemm(&p->list[g], choice, exec));
    }
    return NK_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- */

nk_status sm90_plan_grouped_gemm(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                                 void *choice)
{
    grouped_choice *c = choice;
    c->is_gemv = false;
    const nk_family *family = are_halves(p) ? &sm90_kind_f16_family : &sm90_gemm_family;
    const int forced = nk_tile_forced(settings, family);
    const char *why = p->list ? why_not_list(p, settings) : why_not(p);
    if (why && forced != NK_TILE_ANY) return NK_TILE_REFUSE(family, forced, "%s", why);
    if (why) return nk_decline(plan, why);
    /* Else whether sm80 serves a call, which adds in another order, would depend on how many rows there are. */
    if (settings->batch_invariant && forced == NK_TILE_ANY)
        return nk_decline(plan, "NVFP4KERN_BATCH_INVARIANT=1, which it keeps for some numbers of rows only");
    if (are_halves(p)) return sm90_kind_f16_plan(p, settings, plan, &c->halves);
    if (!p->list) return plan_experts(p, settings, plan, c);
    return plan_list(p, settings, plan, c);
}

nk_status sm90_run_grouped_gemm(const nk_grouped_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const grouped_choice *c = choice;
    if (p->list && c->is_one_launch) return sm90_list_run(p, &c->list, exec);
    if (p->list) return run_apart(p, &c->settings, exec);
    if (are_halves(p)) return sm90_kind_f16_run(p, &c->halves, exec);
    if (c->is_gemv) return sm90_run_gemv_experts(p, &c->gemv, exec);
    const sm90_gemm_product product = product_of(p);
    return sm90_gemm_run(&product, &c->product, exec);
}
