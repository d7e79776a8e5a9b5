/* What fit_costs.py calls of a family's cost model. A file per family includes the plan's own source, so that there is
 * one model; COSTS is a header that makes the macros of the family's _costs.h variables. */
#ifndef MODEL_H
#define MODEL_H

#include COSTS

#include "cuda/cuda_gpu.h"

#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct model_gpu {
    int32_t sms, smem_per_cta, smem_per_sm;
    int32_t clusters[2][9]; /* at once: [CTAs of an SM - 1][size] */
} model_gpu;

/* A call: m tokens, n features. */
typedef struct model_problem {
    int64_t m, n, k;
    int32_t wide;    /* tokens are fp16 */
    int32_t blocked; /* scale factors of the weights */
} model_problem;

/* What explain shows of a plan. split: see each family. */
typedef struct model_choice {
    int32_t tile;
    int32_t split;
    int64_t grid;
} model_choice;

EXPORT double model_costs[COST_COUNT];

/* Microseconds of a choice; below 0 where the family has no such choice. */
EXPORT double model_us(const model_gpu *gpu, const model_problem *problem, const model_choice *choice);

/* What the plan picks, of one tile or, below 0, of all. False where none can do it. */
EXPORT bool model_pick(const model_gpu *gpu, const model_problem *problem, int32_t tile, bool invariant,
                       model_choice *choice);

static inline cuda_gpu gpu_of(const model_gpu *gpu)
{
    return (cuda_gpu){.sms = gpu->sms, .smem_per_cta = gpu->smem_per_cta, .smem_per_sm = gpu->smem_per_sm};
}

#endif
