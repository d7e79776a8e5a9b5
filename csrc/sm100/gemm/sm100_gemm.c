/* gemm on Blackwell: plan and run. The tensor cores' tiles, those of sm100/kind_f16 for 16-bit tokens, or for few
 * tokens the gemv, whichever is faster by cost. */
#include "sm100/gemv/sm100_gemv_plan.h"
#include "sm100/kind_f16/sm100_kind_f16.h"

#define KERNEL(name, ...) [SM100_GEMM_##name] = &sm100_gemm_##name,
static cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT] = {SM100_GEMM_TILES(KERNEL)};

typedef struct gemm_choice {
    bool is_gemv;
    union {
        sm100_gemv_choice gemv;
        sm100_gemm_choice product;
    };
} gemm_choice;

NK_CHOICE_FITS(gemm_choice);

static bool are_halves(const nk_gemm_problem *p) { return p->a.dtype != NK_E2M1X2; }

static nk_status plan_tiles(const nk_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                            sm100_gemm_choice *choice)
{
    const sm100_gemm_product product = {.first = p, .problem = p};
    if (are_halves(p)) return sm100_kind_f16_plan(&product, settings, plan, choice);
    return sm100_gemm_plan(&product, settings, kernels, plan, choice);
}

/* One token is left to a gemv, of this row or a later one. With batch_invariant no token is: its sums would have
 * another order than those of many. */
nk_status sm100_plan_gemm(const nk_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    gemm_choice *c = choice;
    const nk_family *family = are_halves(p) ? &sm100_kind_f16_family : &sm100_gemm_family;
    const bool is_free = !settings->batch_invariant && nk_tile_forced(settings, family) == NK_TILE_ANY;
    c->is_gemv = false;
    if (!is_free || p->m > SM100_GEMV_TOKENS) return plan_tiles(p, settings, plan, &c->product);
    nk_plan other = *plan;
    sm100_gemm_choice tiled;
    const nk_status status = sm100_plan_gemv(p, settings, plan, &c->gemv);
    c->is_gemv = status == NK_OK;
    if (status != NK_DECLINED && (!c->is_gemv || nk_tile_forced(settings, &sm100_gemv_family) != NK_TILE_ANY))
        return status;
    if (p->m == 1) return status;
    const nk_status other_status = plan_tiles(p, settings, &other, &tiled);
    if (c->is_gemv && (other_status == NK_DECLINED || (other_status == NK_OK && c->gemv.deal.us <= tiled.us)))
        return NK_OK;
    *plan = other;
    *c = (gemm_choice){.product = tiled};
    return other_status;
}

nk_status sm100_run_gemm(const nk_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const gemm_choice *c = choice;
    if (c->is_gemv) return sm100_run_gemv(p, &c->gemv, exec);
    const sm100_gemm_product product = {.first = p, .problem = p};
    if (are_halves(p)) return sm100_kind_f16_run(&product, &c->product, exec);
    return sm100_gemm_run(&product, &c->product, exec);
}
