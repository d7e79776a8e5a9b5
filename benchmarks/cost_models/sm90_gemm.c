/* The cost model of sm90/gemm, and of the gemv beside it: its tiles follow. split: what K is divided among; of a gemv,
 * CTAs of a cluster. */
#include "model.h"

#define model_us gemv_us
#define model_pick gemv_pick
#include "sm90_gemv.c"
#undef model_us
#undef model_pick

#include "sm90/gemm/sm90_gemm_plan.c"

static sm90_gemm_sizes sizes_of(const model_problem *p, const cuda_gpu *gpu, int32_t tile, bool invariant)
{
    sm90_gemm_sizes sizes = {
        .gpu = gpu, .l = 1, .m = p->m, .n = p->n, .k = p->k, .matrices = 1, .lanes_copy = !p->blocked};
    for (int i = 0; i < SM90_GEMM_TILE_COUNT; i++) {
        const sm90_gemm_shape *t = &sm90_gemm_shapes[i];
        if ((tile < 0 || tile == i) && t->smem_bytes[0] <= gpu->smem_per_cta && (!invariant || sm90_gemm_walks(t)))
            sizes.usable |= (int64_t)1 << i;
    }
    return sizes;
}

static model_choice choice_of(const model_problem *problem, const cuda_gpu *gpu, int tile)
{
    const sm90_gemm_shape *t = &sm90_gemm_shapes[tile];
    const int64_t tiles = nk_ceil_div(problem->n, t->rows) * nk_ceil_div(problem->m, t->tokens);
    return (model_choice){tile, sm90_gemm_divisions(t),
                          sm90_gemm_walks(t) && tiles > gpu->sms ? gpu->sms : tiles * t->cluster};
}

double model_us(const model_gpu *facts, const model_problem *problem, const model_choice *choice)
{
    const cuda_gpu gpu = gpu_of(facts);
    if (choice->tile >= SM90_GEMM_TILE_COUNT) {
        const model_choice gemv = {choice->tile - SM90_GEMM_TILE_COUNT, choice->split, choice->grid};
        const double us = gemv_us(facts, problem, &gemv);
        return us < 0 ? us : us + SM90_GEMM_GEMV_US;
    }
    const sm90_gemm_sizes sizes = sizes_of(problem, &gpu, choice->tile, false);
    const model_choice same = choice_of(problem, &gpu, choice->tile);
    if (same.split != choice->split || same.grid != choice->grid) return -1;
    return sm90_gemm_us(&sizes, &sm90_gemm_shapes[choice->tile]);
}

/* As sm90_plan_gemm does. */
bool model_pick(const model_gpu *facts, const model_problem *problem, int32_t tile, bool invariant,
                model_choice *choice)
{
    const cuda_gpu gpu = gpu_of(facts);
    const int32_t gemv_tile = tile < 0 ? tile : tile - SM90_GEMM_TILE_COUNT;
    const sm90_gemm_sizes sizes = sizes_of(problem, &gpu, tile, invariant);
    const fastest best = fastest_of(&sizes);
    if (best.tile != NK_TILE_ANY) *choice = choice_of(problem, &gpu, (int)best.tile);
    const bool asked = tile < 0 || tile >= SM90_GEMM_TILE_COUNT;
    model_choice gemv;
    if (!asked || problem->m > SM90_GEMV_MAX_TOKENS || !gemv_pick(facts, problem, gemv_tile, invariant, &gemv))
        return best.tile != NK_TILE_ANY;
    if (best.tile != NK_TILE_ANY && !sm90_gemm_loses(best.us, gemv_us(facts, problem, &gemv))) return true;
    *choice = (model_choice){SM90_GEMM_TILE_COUNT + gemv.tile, gemv.split, gemv.grid};
    return true;
}
