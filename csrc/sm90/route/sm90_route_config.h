/* The tiles of Hopper's router, its launch parameters and the sizes of its shared memory, for host and device. */
#ifndef NK_SM90_ROUTE_CONFIG_H
#define NK_SM90_ROUTE_CONFIG_H

#include "nk_problem.h"

#define SM90_ROUTE_PANEL 64 /* elements of K: the 128 bytes of a row that tensor maps swizzle */

/* X(name, tile_m, tile_n, CTAs of a cluster, panels of a K tile, stages, warps).
 *
 * A CTA multiplies tile_n rows of w (experts: M of the wgmma, 64 for each consumer warpgroup) by tile_m rows of x
 * (tokens: N of the wgmma). The CTAs of a cluster have the same experts and different tokens, and each multicasts an
 * equal share of the rows of w to all. All warps route tokens; the producer warp comes on top. */
#define SM90_ROUTE_TILES(X)          \
    X(t8x64, 8, 64, 1, 2, 4, 8)      \
    X(t16x64, 16, 64, 1, 2, 4, 8)    \
    X(t32x64, 32, 64, 1, 2, 4, 8)    \
    X(t64x64, 64, 64, 1, 2, 4, 8)    \
    X(m16x128, 16, 128, 2, 2, 5, 16) \
    X(m32x64, 32, 64, 2, 2, 6, 16)   \
    X(m32x128, 32, 128, 2, 2, 4, 16) \
    X(m128x256, 128, 256, 2, 1, 4, 16)

enum {
#define SM90_ROUTE_INDEX(name, ...) SM90_ROUTE_##name,
    SM90_ROUTE_TILES(SM90_ROUTE_INDEX)
#undef SM90_ROUTE_INDEX
        SM90_ROUTE_TILE_COUNT
};

#define SM90_ROUTE_THREADS(warps) (32 * (warps) + 32)
#define SM90_ROUTE_SPLITS_AT_ONCE(warps) ((warps) > 8 ? 8 : 16) /* partial sums loaded at once, as registers allow */

/* Pipeline: [stages], each a K tile of w and x. After the main loop the same bytes hold the tile's sums, then the
 * warps' scratch. Behind them are the barriers, and the CTA's work range (see route_turns()). */
#define SM90_ROUTE_STAGE_BYTES(tile_m, tile_n, panels) ((panels) * ((tile_n) + (tile_m)) * 2 * SM90_ROUTE_PANEL)
#define SM90_ROUTE_PITCH(tile_n) ((tile_n) + 4) /* of sums: spreads a warp's part of an accumulator over all banks */
#define SM90_ROUTE_SUM_BYTES(tile_m, tile_n) (4 * (tile_m) * SM90_ROUTE_PITCH(tile_n))
#define SM90_ROUTE_BARRIER_BYTES(stages) (16 * (stages) + 16)

/* Scheduler parameters: the grid is [CTAs along tokens][tiles of experts][splits of K]. */
typedef struct sm90_route_params {
    float *partials;    /* [split_k][M][pitch], if several CTAs have sums of the same tokens */
    uint64_t *counters; /* [CTAs of the grid's first dimension][ROUTE_BARRIER_COUNTERS] */
    uint64_t base;      /* what this launch's counters count from */
    int32_t pitch;
    int32_t arrivals;        /* CTAs with sums of the same tokens; 1: there are no partials */
    int32_t waiters;         /* of those, how many may route */
    int32_t turn_tokens;     /* that one routes at a time, one a warp */
    int32_t timeout;         /* clocks that a CTA waits for the last one */
    int32_t k_tiles;         /* along K */
    int32_t k_tiles_per_cta; /* the last ones may have fewer */
    int32_t split_k;         /* over clusters, through the workspace */
    int32_t scratch_experts; /* that a warp's scratch has room for */
    int32_t barriers_at;     /* in shared memory */
    int32_t early;           /* stages whose weights are loaded before the kernel before has ended */
} sm90_route_params;

#endif
