/* The cost model of sm80/gemm. split: steps of K that a CTA takes, 0: a tile each. */
#include "model.h"

#include "sm80/gemm/sm80_gemm_plan.c"

static sm80_product product_of(const model_problem *p)
{
    return (sm80_product){.l = 1,
                          .m = p->m,
                          .n = p->n,
                          .k = p->k,
                          .kind = p->wide ? SM80_GEMM_FP16 : SM80_GEMM_NVFP4,
                          .outputs_per_warp = 32};
}

double model_us(const model_gpu *facts, const model_problem *problem, const model_choice *choice)
{
    const cuda_gpu gpu = gpu_of(facts);
    const sm80_product p = product_of(problem);
    const sm80_gemm_tile *t = &sm80_gemm_tiles[choice->tile];
    const int per_sm = choice->split ? (int)nk_ceil_div(choice->grid, gpu.sms) : 0;
    const sm80_gemm_work work = work_of(&p, t);
    if (sm80_gemm_steps_per_cta(work, per_sm, &gpu) != choice->split) return -1;
    return sm80_gemm_launch_us(t, ctas_per_sm(t, p.kind, &gpu), &gpu, work, per_sm);
}

bool model_pick(const model_gpu *facts, const model_problem *problem, int32_t tile, bool invariant,
                model_choice *choice)
{
    const cuda_gpu gpu = gpu_of(facts);
    const sm80_product p = product_of(problem);
    question q = {
        .gpu = &gpu, .kind = (int16_t)p.kind, .invariant = invariant, .forced = tile < 0 ? NK_TILE_ANY : tile};
    for (int i = 0; i < SM80_GEMM_TILE_COUNT; i++)
        q.work[i] = work_of(&p, &sm80_gemm_tiles[i]);
    const sm80_gemm_dealing d = pick(&q);
    *choice = (model_choice){d.tile, (int32_t)d.steps_per_cta, d.grid};
    return d.tile >= 0;
}
