/* The cost model of sm90/gemm, and of the gemv beside it: its tiles follow. split: what K is divided among; of a gemv,
 * CTAs of a cluster. */
#include "model.h"

#define model_us gemv_us
#define model_pick gemv_pick
#include "sm90_gemv.c"
#undef model_us
#undef model_pick

#include "sm90/gemm/sm90_gemm.c"

/* What the family says of lists, of which a sweep has none. */
cuda_kernel *sm90_list_kernel_of(const gemm_desc *d, int config) { return (void)d, (void)config, NULL; }
bool sm90_list_has_schedule(const gemm_candidate *c) { return (void)c, false; }
double sm90_list_us(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    return (void)d, (void)q, c->us;
}
void sm90_list_derive(const gemm_desc *d, const gemm_query *q, gemm_launch *c) { (void)d, (void)q, (void)c; }

#define FAMILY                                   \
    {.configs = configs,                         \
     .count = SM90_GEMM_TILE_COUNT,              \
     .schedules = 1,                             \
     .invariant = NK_TILE_ANY,                   \
     .kernel = sm90_gemm_kernel_of,              \
     .why_not_config = sm90_gemm_why_not_config, \
     .us = sm90_gemm_us,                         \
     .derive = sm90_gemm_derive}
#include "gemm.h"

double model_us(const model_gpu *gpu, const model_problem *problem, const model_choice *choice)
{
    if (choice->tile < SM90_GEMM_TILE_COUNT) return gemm_model_us(gpu, problem, choice);
    const model_choice gemv = {choice->tile - SM90_GEMM_TILE_COUNT, choice->split, choice->grid};
    const double us = gemv_us(gpu, problem, &gemv);
    return us < 0 ? us : us + SM90_GEMM_GEMV_US;
}

/* As sm90's cells do. */
bool model_pick(const model_gpu *gpu, const model_problem *problem, int32_t tile, bool invariant, model_choice *choice)
{
    const int32_t gemv_tile = tile < 0 ? tile : tile - SM90_GEMM_TILE_COUNT;
    const bool asks_tiles = tile < SM90_GEMM_TILE_COUNT, asks_gemv = tile < 0 || tile >= SM90_GEMM_TILE_COUNT;
    const bool found = asks_tiles && gemm_model_pick(gpu, problem, tile, invariant, choice);
    model_choice gemv;
    if (!asks_gemv || problem->m > SM90_GEMV_MAX_TOKENS || !gemv_pick(gpu, problem, gemv_tile, invariant, &gemv))
        return found;
    gemv.tile += SM90_GEMM_TILE_COUNT;
    if (!found || model_us(gpu, problem, &gemv) <= model_us(gpu, problem, choice)) *choice = gemv;
    return true;
}
