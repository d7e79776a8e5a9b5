/* How long a GEMM takes with each tile: the model that plans choose by. */
#ifndef NK_SM80_GEMM_MODEL_H
#define NK_SM80_GEMM_MODEL_H

#include "sm80_gemm_config.h"
#include "sm80_gemm_costs.h"
#include "sm80_gemm_plan.h"

#define SM80_GEMM_MIN_STEPS_PER_CTA 2

/* fp32 sums of a tile */
static inline int64_t sm80_gemm_sum_bytes(const sm80_gemm_tile *t) { return (int64_t)t->tokens * t->warps * 32 * 4; }

/* One step of K on an SM with `resident` such CTAs. */
static inline double sm80_gemm_step_us(const sm80_gemm_tile *t, int64_t resident)
{
    double rows = t->warps * 32, tokens = t->tokens;
    double compute = tokens * rows * SM80_GEMM_STEP(SM80_GEMM_NVFP4) * 2 * (1 / SM80_GEMM_FLOP_PER_US) +
                     SM80_GEMM_DECODE_US * rows * (1.0 / 128);
    double memory = (tokens + rows) * 72 * (1 / SM80_GEMM_BYTES_PER_US); /* codes and factors */
    double work = (compute > memory ? compute : memory) * (double)resident;
    double lone = (SM80_GEMM_LONE_STEP_US + SM80_GEMM_LONE_TOKEN_US * tokens) *
                  (1 + SM80_GEMM_NEIGHBOUR * (double)(resident - 1));
    return work > lone ? work : lone;
}

/* 64-bit divisions would be most of a plan's time. */
static inline int64_t sm80_ceil_div(int64_t x, int64_t y)
{
    if (x > INT32_MAX || y > INT32_MAX) return nk_ceil_div(x, y);
    return (int64_t)(((uint32_t)x + (uint32_t)y - 1) / (uint32_t)y);
}

/* Steps that a CTA takes of `work`, or 0: a tile each. `per_sm` is 0 for that, else how many CTAs an SM gets. */
static inline int64_t sm80_gemm_steps_per_cta(sm80_gemm_work work, int per_sm, const cuda_gpu *gpu)
{
    return per_sm ? sm80_ceil_div(work.steps, per_sm * gpu->sms) : 0;
}

/* Microseconds that `work` takes. */
static inline double sm80_gemm_launch_us(const sm80_gemm_tile *t, int resident, const cuda_gpu *gpu,
                                         sm80_gemm_work work, int per_sm)
{
    double steps = (double)work.steps / (double)work.tiles; /* of a tile, on average */
    int64_t per_cta = sm80_gemm_steps_per_cta(work, per_sm, gpu);
    int32_t at_once = resident * gpu->sms;
    if (!per_cta) {
        int64_t waves = sm80_ceil_div(work.tiles, at_once);
        int64_t crowd = work.tiles < at_once ? sm80_ceil_div(work.tiles, gpu->sms) : resident;
        return (double)waves * (steps * sm80_gemm_step_us(t, crowd) + SM80_GEMM_CTA_US);
    }
    bool aligned = per_cta * sm80_ceil_div((int64_t)steps, per_cta) * work.tiles == work.steps;
    double others =
        aligned ? 0 : 1 + (double)(per_cta - SM80_GEMM_MIN_STEPS_PER_CTA) / steps; /* tiles of a CTA after its first */
    double sums = (double)work.steps / (double)per_cta * (aligned ? 1 : 2) * (double)sm80_gemm_sum_bytes(t);
    double cta = (double)per_cta * sm80_gemm_step_us(t, per_sm) + SM80_GEMM_CTA_US + others * SM80_GEMM_PART_US;
    return cta + SM80_GEMM_REDUCE_US + sums * (1 / SM80_GEMM_SUM_BYTES_PER_US);
}

#endif
