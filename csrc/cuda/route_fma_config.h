/* The tiles of Blackwell's routers without tensor cores, and launch parameters, for host and device. */
#ifndef NK_ROUTE_FMA_CONFIG_H
#define NK_ROUTE_FMA_CONFIG_H

#include "cuda_route.h"
#include "nk_problem.h"

/* X(name, TOKENS, EXPERTS, STEP of K, CTAs per SM that registers allow, then TV, TG and EG of cuda/route_fma.cuh). Few
 * tokens have long steps, since CTAs then wait for memory most of the time. No cost chooses, so NVFP4KERN_TILE knows
 * none. */
#define ROUTE_FMA_TILES(X)           \
    X(fma32, 32, 64, 64, 2, 1, 1, 2) \
    X(fma128, 128, 128, 16, 1, 4, 2, 2)

enum {
#define ROUTE_FMA_INDEX(name, ...) ROUTE_##name,
    ROUTE_FMA_TILES(ROUTE_FMA_INDEX)
#undef ROUTE_FMA_INDEX
        ROUTE_FMA_TILE_COUNT
};

#define ROUTE_FMA_SMEM(tokens, experts, step) (2 * 4 * (step) * ((experts) + (tokens) + 8))

#define ROUTE_SELECT_WARPS 8 /* a token each; all threads load their logits */
#define ROUTE_SELECT_THREADS (32 * ROUTE_SELECT_WARPS)

/* The parameters of both launches. The grid of the first is [token tiles][expert tiles][splits of K]. */
typedef struct route_fma_params {
    float *partials; /* [splits][M][pitch]: sums over a share of K. NULL if logits are given */
    int32_t pitch, splits;
    int32_t steps, steps_per_split; /* of the tile's length */
    bool wide_w, wide_x;            /* eight elements of any row lie in aligned bytes: 32 of fp32, or 16 */
    int32_t turn_tokens;            /* that a CTA of the second launch routes */
    int32_t scratch_experts;        /* that a warp's scratch has room for */
} route_fma_params;

#endif
