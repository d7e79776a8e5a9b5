/* How long a product takes with each tile: the model that plans choose by. */
#ifndef NK_SM90_GEMM_MODEL_H
#define NK_SM90_GEMM_MODEL_H

#include "sm90_gemm_costs.h"
#include "sm90_gemm_plan.h"

/* All that a choice depends on, as whole words: a memo compares them. */
typedef struct sm90_gemm_sizes {
    const cuda_gpu *gpu;
    int64_t l, m, n, k;
    int32_t features;   /* of a tile */
    int32_t lanes_copy; /* the weights' scale factors, and no copy of whole atoms does */
    int64_t usable;     /* a bit for each tile that can serve the product */
} sm90_gemm_sizes;

static inline double sm90_gemm_larger(double x, double y) { return x > y ? x : y; }

/* A step of K = 128 of a CTA. Tensor cores and instructions work side by side, but beside busy tensor cores
 * instructions are issued slowly. `busy` is the part of the SMs that has CTAs: they share memory, L2 and power. */
static inline double sm90_gemm_step_us(const sm90_gemm_shape *t, bool lanes_copy)
{
    const double tensor = t->tokens * SM90_GEMM_TENSOR_TOKEN_US;
    const double issue = SM90_GEMM_ISSUE_US + t->tokens * SM90_GEMM_ISSUE_TOKEN_US + SM90_GEMM_SLOT_US / t->steps +
                         (lanes_copy ? SM90_GEMM_LANES_US : 0);
    return sm90_gemm_larger(tensor, issue);
}

static inline int64_t sm90_gemm_tiles_of(const sm90_gemm_sizes *s, const sm90_gemm_shape *t)
{
    return s->l * nk_ceil_div(s->n, s->features) * nk_ceil_div(s->m, t->tokens);
}

/* Microseconds that tile `t` takes, with its first kernel. */
static inline double sm90_gemm_us(const sm90_gemm_sizes *s, const sm90_gemm_shape *t)
{
    const int64_t all_steps = nk_ceil_div(s->k, SM90_GEMM_STEP);
    const int64_t tiles = sm90_gemm_tiles_of(s, t);
    const int64_t at_once = s->gpu->sms / t->cluster, waves = nk_ceil_div(tiles, at_once > 0 ? at_once : 1);
    const int64_t steps = nk_ceil_div(nk_ceil_div(all_steps, t->steps), t->cluster) * t->steps;
    const double ctas = (double)((tiles < at_once ? tiles : at_once) * t->cluster);
    const double padded_k = (double)(all_steps * SM90_GEMM_STEP);
    const double tokens = (double)s->l * (double)s->m * padded_k * 2;
    const double weights = (double)s->l * (double)s->n * padded_k * (9.0 / 16) * (SM90_GEMM_ROWS / s->features);
    const double busy = 1 + SM90_GEMM_BUSY * ctas / s->gpu->sms;
    const double loop = busy * (double)(waves * steps) * sm90_gemm_step_us(t, s->lanes_copy);
    const double tile =
        SM90_GEMM_TILE_US + t->tokens * SM90_GEMM_TILE_TOKEN_US + (sm90_gemm_walks(t) ? 0 : SM90_GEMM_DIVIDED_US);
    return SM90_GEMM_LAUNCH_US + tokens / SM90_GEMM_TOKEN_BYTES_PER_US + busy * (double)waves * tile +
           sm90_gemm_larger(loop, weights / SM90_GEMM_BYTES_PER_US);
}

/* Whether a gemv is faster, by the microseconds of both models. */
static inline bool sm90_gemm_loses(double us, double gemv_us) { return gemv_us + SM90_GEMM_GEMV_US <= us; }

#endif
