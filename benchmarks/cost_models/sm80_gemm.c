/* The cost model of sm80/gemm. split: steps of K that a CTA takes, 0: a tile each. */
#include "model.h"

#include "sm80/gemm/sm80_gemm.c"

#define FAMILY                              \
    {.configs = configs,                    \
     .count = SM80_GEMM_TILE_COUNT,         \
     .schedules = 4,                        \
     .invariant = NK_TILE_ANY,              \
     .kernel = sm80_kernel_of,              \
     .why_not_config = sm80_why_not_config, \
     .us = sm80_us_of,                      \
     .derive = sm80_derive}
#include "gemm.h"

double model_us(const model_gpu *gpu, const model_problem *problem, const model_choice *choice)
{
    return gemm_model_us(gpu, problem, choice);
}

bool model_pick(const model_gpu *gpu, const model_problem *problem, int32_t tile, bool invariant, model_choice *choice)
{
    return gemm_model_pick(gpu, problem, tile, invariant, choice);
}
