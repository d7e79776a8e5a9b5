/* How long a product takes with each tile: the model that plans choose by. */
#ifndef NK_SM90_GEMM_MODEL_H
#define NK_SM90_GEMM_MODEL_H

#include "sm90/gemv/sm90_gemv_scheduler.h"
#include "sm90_gemm_costs.h"
#include "sm90_gemm_plan.h"

/* All that a choice depends on, as whole words: a memo compares them. */
typedef struct sm90_gemm_sizes {
    const cuda_gpu *gpu;
    int64_t l, m, n, k;
    int64_t experts;    /* 0: none */
    int32_t matrices;   /* of weights: dual_gemm has two */
    int32_t lanes_copy; /* the weights' scale factors, and no copy of whole atoms does */
    int64_t usable;     /* a bit for each tile that can serve the product */
} sm90_gemm_sizes;

static inline double sm90_gemm_larger(double x, double y) { return x > y ? x : y; }

/* A step of K = 128 of a CTA. Tensor cores and instructions work side by side, but beside busy tensor cores
 * instructions are issued slowly. `busy` is the part of the SMs that has CTAs: they share memory, L2 and power. */
static inline double sm90_gemm_step_us(const sm90_gemm_shape *t, bool lanes_copy)
{
    const double rows = SM90_GEMM_STAGE_N(t->rows) / 128.0;
    const double tensor = t->tokens * SM90_GEMM_TENSOR_TOKEN_US;
    const double issue = SM90_GEMM_ISSUE_US + t->tokens * SM90_GEMM_ISSUE_TOKEN_US + SM90_GEMM_STAGE_US / t->steps +
                         (lanes_copy ? SM90_GEMM_LANES_US : 0);
    return rows * sm90_gemm_larger(tensor, issue);
}

/* What m rows become that fall to `experts` by chance: tiles of `tokens` each, where an expert's last one is not full.
 * An expert's rows are as good as Poisson distributed. More than MANY make half a tile more an expert. */
static inline double sm90_gemm_expert_tiles(int64_t m, int64_t experts, int32_t tokens)
{
    enum { MANY = 512, WIDTH = 200 }; /* nine standard deviations of MANY */
    const double mean = (double)m / (double)experts;
    if (mean > MANY) return (double)experts * sm90_gemm_larger(1, mean / tokens + 0.5);
    const int first = mean > WIDTH ? (int)mean - WIDTH : 0;
    double weight = 1, all = 0, tiles = 0; /* weights are relative, to the first one */
    for (int rows = first; rows < first + 2 * WIDTH; rows++) {
        if (rows > mean && weight < 1e-9 * all) break;
        all += weight;
        tiles += weight * (rows / tokens + (rows % tokens != 0));
        weight *= mean / (rows + 1);
    }
    return (double)experts * tiles / all;
}

static inline double sm90_gemm_tiles_of(const sm90_gemm_sizes *s, const sm90_gemm_shape *t)
{
    const double row_tiles = (double)nk_ceil_div(s->n, t->rows / s->matrices);
    if (s->experts) return row_tiles * sm90_gemm_expert_tiles(s->m, s->experts, t->tokens);
    return row_tiles * (double)(s->l * nk_ceil_div(s->m, t->tokens));
}

/* Matrices of weights that are read: of experts those with rows. */
static inline double sm90_gemm_matrices_of(const sm90_gemm_sizes *s)
{
    return s->experts ? sm90_gemm_expert_tiles(s->m, s->experts, INT32_MAX) : (double)s->l;
}

/* Microseconds that tile `t` takes, with its first kernel. */
static inline double sm90_gemm_us(const sm90_gemm_sizes *s, const sm90_gemm_shape *t)
{
    const int64_t all_steps = nk_ceil_div(s->k, SM90_GEMM_STEP);
    const double tiles = sm90_gemm_tiles_of(s, t);
    const int64_t at_once = s->gpu->sms / t->cluster > 0 ? s->gpu->sms / t->cluster : 1;
    const int64_t whole = (int64_t)(tiles / (double)at_once), waves = whole + ((double)(whole * at_once) < tiles);
    const int64_t steps =
        nk_ceil_div(nk_ceil_div(all_steps, t->steps), t->cluster) * t->steps * (t->rows / SM90_GEMM_STAGE_N(t->rows));
    const double ctas = (tiles < (double)at_once ? tiles : (double)at_once) * t->cluster;
    const double padded_k = (double)(all_steps * SM90_GEMM_STEP);
    const double tokens = (double)s->l * (double)s->m * padded_k * 2;
    const double weights = sm90_gemm_matrices_of(s) * (double)s->n * padded_k * (9.0 / 16) * s->matrices;
    const double busy = 1 + SM90_GEMM_BUSY * ctas / s->gpu->sms;
    const double loop = busy * (double)(waves * steps) * sm90_gemm_step_us(t, s->lanes_copy);
    const double tile =
        SM90_GEMM_TILE_US + t->tokens * SM90_GEMM_TILE_TOKEN_US + (sm90_gemm_walks(t) ? 0 : SM90_GEMM_SPLIT_K_US);
    return SM90_GEMM_LAUNCH_US + tokens / SM90_GEMM_TOKEN_BYTES_PER_US + busy * (double)waves * tile +
           sm90_gemm_larger(loop, weights / SM90_GEMM_BYTES_PER_US);
}

/* Whether a gemv is faster, by the microseconds of both models. */
static inline bool sm90_gemm_loses(double us, double gemv_us) { return gemv_us + SM90_GEMM_GEMV_US <= us; }

/* Of experts: a gemv serves the call where its tile is forced, and where no other tile can. */
static inline bool sm90_gemv_wins(const nk_settings *settings, const sm90_gemm_pick *pick, const sm90_gemv_choice *gemv)
{
    return nk_tile_forced(settings, &sm90_gemv_family) != NK_TILE_ANY || pick->tile == NK_TILE_ANY ||
           sm90_gemm_loses(pick->us, gemv->schedule.us);
}

#endif
