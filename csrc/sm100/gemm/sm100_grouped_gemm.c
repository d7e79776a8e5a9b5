/* grouped_gemm on Blackwell: contiguous experts, in one launch, or a list of groups. Tiles of sm100/kind_f16 have
 * 16-bit tokens. */
#include "sm100/kind_f16/sm100_kind_f16.h"
#include "sm100_list.h"

#define KERNEL(name, ...) [SM100_GEMM_##name] = &sm100_grouped_gemm_##name,
static cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT] = {SM100_GEMM_GROUPED_TILES(KERNEL)};

typedef union grouped_choice {
    sm100_gemm_choice product;
    sm100_list_choice list;
} grouped_choice;

NK_CHOICE_FITS(grouped_choice);

static sm100_gemm_product product_of(const nk_grouped_gemm_problem *p)
{
    return (sm100_gemm_product){
        .first = &p->all, .problem = &p->all, .has_experts = true, .experts = sm100_gemm_experts_of(p)};
}

static bool are_halves(const nk_grouped_gemm_problem *p) { return !p->list && p->all.a.dtype != NK_E2M1X2; }

nk_status sm100_plan_grouped_gemm(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                                  void *choice)
{
    grouped_choice *c = choice;
    if (p->list) return sm100_list_plan(p, settings, plan, &c->list);
    const char *why = !are_halves(p) && p->all.b.dtype != NK_E2M1X2 ? "the weights are not NVFP4" : NULL;
    const nk_family *family = are_halves(p) ? &sm100_kind_f16_family : &sm100_gemm_family;
    const int forced = nk_tile_forced(settings, family);
    if (why && forced != NK_TILE_ANY) return NK_TILE_REFUSE(family, forced, "%s", why);
    if (why) return nk_decline(plan, why);
    const sm100_gemm_product product = product_of(p);
    if (are_halves(p)) return sm100_kind_f16_plan(&product, settings, plan, &c->product);
    return sm100_gemm_plan(&product, settings, kernels, plan, &c->product);
}

nk_status sm100_run_grouped_gemm(const nk_grouped_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const grouped_choice *c = choice;
    if (p->list) return sm100_list_run(p, &c->list, exec);
    const sm100_gemm_product product = product_of(p);
    if (are_halves(p)) return sm100_kind_f16_run(&product, &c->product, exec);
    return sm100_gemm_run(&product, &c->product, exec);
}
