/* The cost model of sm80/route: m tokens, n experts, the eight largest. split: of K. */
#include "model.h"

#include "cuda/cuda_image.h"
#include "sm80/route/sm80_route_config.h"

#include "nk_tile.h"

#define DECLARE(name, ...) extern cuda_kernel sm80_route_##name##_fp16, sm80_route_##name##_bf16;
SM80_ROUTE_TILES(DECLARE)
#define DECLARE_FMA(name, ...) extern cuda_kernel sm80_route_##name;
SM80_ROUTE_FMA_TILES(DECLARE_FMA)
extern cuda_kernel sm80_route_select;

#include "sm80/route/sm80_route.c"

static int32_t asked;

int nk_tile_named(const char *list, const nk_family *family) { return list && family ? asked : NK_TILE_ANY; }
nk_status nk_fail(nk_status status, const char *format, ...) { return format ? status : NK_OK; }

static nk_route_problem problem_of(const model_problem *p)
{
    return (nk_route_problem){
        .m = p->m, .n = p->n, .k = p->k, .top_k = p->n < 8 ? p->n : 8, .n_group = 1, .topk_group = 1};
}

double model_us(const model_gpu *facts, const model_problem *problem, const model_choice *choice)
{
    const cuda_gpu gpu = gpu_of(facts);
    const nk_route_problem p = problem_of(problem);
    sm80_route_candidate c = shape_of(&p, choice->tile);
    c.splits = choice->split;
    c.ranges = choice->grid / (c.token_tiles * c.splits);
    return c.ranges == 1 || c.ranges == c.expert_tiles ? sm80_route_time_of(&c, &p, &gpu) : -1;
}

bool model_pick(const model_gpu *facts, const model_problem *problem, int32_t tile, bool invariant,
                model_choice *choice)
{
    const cuda_gpu gpu = gpu_of(facts);
    const nk_route_problem p = problem_of(problem);
    const nk_settings settings = {.tile = {tile < 0 ? 0 : '*'}, .batch_invariant = invariant};
    sm80_route_candidate c;
    asked = tile;
    if (sm80_route_choose(&p, &gpu, &settings, &c) != NK_OK) return false;
    *choice = (model_choice){c.tile, (int32_t)c.splits, c.token_tiles * c.ranges * c.splits};
    return true;
}
