/* gemm: its plan and run. One token goes to the gemv. */
#include "sm80/gemv/sm80_gemv_plan.h"
#include "sm80_gemm_plan.h"

#define OUTPUTS_PER_WARP 32
#define KERNEL(name, kind) &sm80_gemm_##name##_##kind
#define ROW(name, ...) {KERNEL(name, nvfp4), KERNEL(name, fp16), KERNEL(name, bf16), KERNEL(name, reduce)},
static const sm80_gemm_kernels kernels[SM80_GEMM_TILE_COUNT] = {SM80_GEMM_TILES(ROW)};

/* A gemv adds in another order, so it is not for batch-invariant calls. */
typedef struct gemm_choice {
    bool is_gemv;
    union {
        sm80_gemv_choice gemv;
        sm80_gemm_choice gemm;
    };
} gemm_choice;

NK_CHOICE_FITS(gemm_choice);

nk_status sm80_plan_gemm(const nk_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    gemm_choice *c = choice;
    c->is_gemv = p->m == 1 && !settings->batch_invariant;
    if (c->is_gemv) return sm80_plan_gemv(p, settings, plan, &c->gemv);
    sm80_product product = {p->device, p->l, p->m, p->n, p->k, sm80_gemm_kind(&p->a, &p->b), OUTPUTS_PER_WARP};
    return sm80_gemm_plan(&product, settings, kernels, plan, &c->gemm);
}

nk_status sm80_run_gemm(const nk_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const gemm_choice *c = choice;
    if (c->is_gemv) return sm80_run_gemv(p, &c->gemv, exec);
    return sm80_gemm_run(p->device, p, &c->gemm, exec);
}
