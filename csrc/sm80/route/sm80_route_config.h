/* The router's tiles, shared memory and launch parameters, for host and device. */
#ifndef NK_SM80_ROUTE_CONFIG_H
#define NK_SM80_ROUTE_CONFIG_H

#include "cuda/cuda_route.h"
#include "nk_problem.h"

/* X(name, TOKENS, EXPERTS, WARP_TOKENS, WARP_EXPERTS, K_WARPS, STAGES, CTAs per SM that registers allow, ALIGNED): a
 * CTA multiplies EXPERTS rows of w by TOKENS rows of x, 64 K_WARPS elements of K at a time, of which each of K_WARPS
 * warps takes 64. STAGES steps are in shared memory. ALIGNED: all rows to 16 bytes; `narrow` serves any address.
 * t128x256 is for GPUs with much shared memory; all other tiles fit the 99 KB of small devices. */
#define SM80_ROUTE_TILES(X)               \
    X(t8, 8, 32, 8, 16, 4, 4, 2, 1)       \
    X(t32, 32, 64, 32, 16, 2, 4, 2, 1)    \
    X(narrow, 32, 64, 32, 16, 2, 4, 2, 0) \
    X(t128, 128, 128, 64, 32, 1, 3, 2, 1) \
    X(t128x256, 128, 256, 64, 64, 1, 4, 1, 1)

/* Of the kernels that multiply fp32 numbers one by one: X(name, TOKENS, EXPERTS, CTAs per SM, then the groups of tokens
 * and experts that a thread has). No cost chooses among them, so NVFP4KERN_TILE knows none. */
#define SM80_ROUTE_FMA_TILES(X)  \
    X(fma32, 32, 64, 2, 1, 1, 2) \
    X(fma128, 128, 128, 1, 4, 2, 2)
#define SM80_ROUTE_FMA_STEP 16   /* elements of K */
#define SM80_ROUTE_SELECT_CTAS 2 /* per SM */

enum {
#define SM80_ROUTE_INDEX(name, ...) SM80_ROUTE_##name,
    SM80_ROUTE_TILES(SM80_ROUTE_INDEX) SM80_ROUTE_TILE_COUNT,
    SM80_ROUTE_BEFORE_FMA = SM80_ROUTE_TILE_COUNT - 1,
    SM80_ROUTE_FMA_TILES(SM80_ROUTE_INDEX)
#undef SM80_ROUTE_INDEX
        SM80_ROUTE_select, /* the selection alone, eight tokens a CTA */
    SM80_ROUTE_KERNEL_COUNT
};

#define SM80_ROUTE_WARPS 8 /* of every tile */
#define SM80_ROUTE_THREADS (32 * SM80_ROUTE_WARPS)

/* Operands: [STAGES][K_WARPS][EXPERTS + TOKENS][64 elements], the eight 16-byte words of a row permuted by row % 8.
 * Later the same bytes hold, one after the other, the tile's sums, a scratch_t for each warp, the histograms of the
 * permutation. */
#define SM80_ROUTE_SMEM(tokens, experts, k_warps, stages) ((stages) * (k_warps) * ((experts) + (tokens)) * 128)

/* What turns need of shared memory: a scratch_t for each warp, or a sort_t. */
#define SM80_ROUTE_TURN_BYTES (SM80_ROUTE_WARPS * ROUTE_SCRATCH_BYTES(NK_MAX_EXPERTS))

/* The tile scheduler of a launch: the grid is [splits of K][ranges of experts][token tiles]. */
typedef struct sm80_route_params {
    float *partials;    /* [splits][M][pitch]: sums over one split of K */
    uint64_t *counters; /* [token tiles][ROUTE_BARRIER_COUNTERS], then the launch's */
    uint64_t base;      /* what this launch's counters count from */
    int32_t token_tiles;
    int32_t pitch;
    int32_t ctas;        /* of a token tile */
    int32_t turn_tokens; /* that a CTA routes at a time, one a warp */
    int32_t waiters;     /* CTAs of a token tile that may take turns */
    int32_t leavers;     /* CTAs of the launch that route, or that waited to */
    int32_t sorters;     /* those of them that may sort */
    int32_t timeout;     /* clocks to wait for the last CTA */
    int32_t splits, steps, steps_per_split;
    int32_t tiles_per_cta; /* of experts, taken in turns */
} sm80_route_params;

#define SM80_ROUTE_MOST_CTAS 4095 /* of a token tile */
#define SM80_ROUTE_MOST_WAITERS 31

#endif
