/* What routers of all rows share, for host and device: sizes of shared memory, and what their counters count from. */
#ifndef NK_CUDA_ROUTE_H
#define NK_CUDA_ROUTE_H

#include "nk_problem.h"

/* Scratch of a warp that routes a token: a number for each expert, twice. A lane reads four experts at a time, also of
 * those that are not there. */
#define ROUTE_SCRATCH_EXPERTS(n) ((n) <= 128 ? 128 : (n) <= 256 ? 256 : (n) <= 512 ? 512 : 1024)
#define ROUTE_SCRATCH_BYTES(experts) (8 * (experts))

#define ROUTE_BARRIER_COUNTERS 2 /* see grid_barrier.cuh */

/* Whether scores are softmaxes without a bias, or sigmoids, and no factor of an expert multiplies its weight: what most
 * routers ask for.
 * A token's time is the number of instructions on its way, so a kernel for these alone is the shorter one. */
static inline bool cuda_route_is_plain(const nk_route_problem *p)
{
    const bool is_softmax = p->score == NK_TOPK_SOFTMAX || p->score == NK_SOFTMAX_TOPK;
    return !p->per_expert_scale && (p->score == NK_SIGMOID || (is_softmax && !p->correction_bias));
}

#define ROUTE_FMA_THREADS 256 /* of a CTA that multiplies fp32 numbers one by one */

#define ROUTE_SORT_WARPS 8 /* of a CTA that sorts: a thread has four experts */

typedef struct sort_t {
    int32_t next[ROUTE_SORT_WARPS][NK_MAX_EXPERTS], before[NK_MAX_EXPERTS], after[NK_MAX_EXPERTS];
    int32_t warp_sums[ROUTE_SORT_WARPS], placed; /* placed: entries of local experts */
} sort_t;

/* A number that differs for every launch, in all 64 bits: see counters.cuh. */
uint64_t cuda_counter_base(void);

#endif
