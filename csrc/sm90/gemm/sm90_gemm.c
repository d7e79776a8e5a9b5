/* gemm on Hopper: plan and run. Few tokens go to the gemv. The tensor cores' tiles run where NVFP4KERN_TILE forces one:
 * no GPU has timed them, so no plan chooses them by itself. */
#include "sm90/gemv/sm90_gemv_deal.h"
#include "sm90_gemm_plan.h"

#define KERNELS(name, ...) [SM90_GEMM_##name] = {&sm90_gemm_##name##_halves, &sm90_gemm_##name##_bfloats},
static const sm90_gemm_kernels kernels[SM90_GEMM_TILE_COUNT] = {SM90_GEMM_TILES(KERNELS)};

typedef struct gemm_choice {
    bool is_gemv;
    union {
        sm90_gemv_choice gemv;
        sm90_gemm_choice product;
    };
} gemm_choice;

NK_CHOICE_FITS(gemm_choice);

nk_status sm90_plan_gemm(const nk_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    gemm_choice *c = choice;
    const sm90_gemm_product product = {.first = p, .problem = p};
    const int forced = nk_tile_forced(settings, &sm90_gemm_family);
    c->is_gemv = forced == NK_TILE_ANY;
    if (c->is_gemv) return sm90_plan_gemv(p, settings, plan, &c->gemv);
    return sm90_gemm_plan(&product, settings, kernels, forced, plan, &c->product);
}

nk_status sm90_run_gemm(const nk_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const gemm_choice *c = choice;
    if (c->is_gemv) return sm90_run_gemv(p, &c->gemv, exec);
    const sm90_gemm_product product = {.first = p, .problem = p};
    return sm90_gemm_run(&product, &c->product, exec);
}
