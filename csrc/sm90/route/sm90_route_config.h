/* The tiles of Hopper's router, its launch parameters and the sizes of its shared memory, for host and device. */
#ifndef NK_SM90_ROUTE_CONFIG_H
#define NK_SM90_ROUTE_CONFIG_H

#include "nk_problem.h"

#define SM90_ROUTE_PANEL 64 /* elements of K: the 128 bytes of a row that tensor maps swizzle */

/* X(name, TOKENS, EXPERTS, CTAs that share experts, panels of a slot, slots of the ring, warps).
 *
 * A CTA multiplies EXPERTS rows of w, of which each warpgroup has 64, by TOKENS rows of x. The CTAs of a cluster share
 * experts, and have tokens of their own: each loads a part of the rows of w, for all. All warps route tokens; one more
 * loads. */
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
#define SM90_ROUTE_PARTS_AT_ONCE(warps) ((warps) > 8 ? 8 : 16) /* of a logit that are loaded, as registers allow */

/* Ring of operands: [slots] of a step of K, of both. Later the same bytes hold the tile's sums, then the warps'
 * scratch. Behind them are the barriers, and what a CTA tells itself. */
#define SM90_ROUTE_SLOT_BYTES(tokens, experts, panels) ((panels) * ((experts) + (tokens)) * 2 * SM90_ROUTE_PANEL)
#define SM90_ROUTE_PITCH(experts) ((experts) + 4) /* of sums: spreads what a warp holds of a product over all banks */
#define SM90_ROUTE_SUM_BYTES(tokens, experts) (4 * (tokens) * SM90_ROUTE_PITCH(experts))
#define SM90_ROUTE_BARRIER_BYTES(slots) (16 * (slots) + 16)

/* How one launch divides the work: the grid is [clusters along tokens][tiles of experts][splits of K]. */
typedef struct sm90_route_params {
    float *partials;    /* [splits][M][pitch]: sums over one split of K, where several CTAs have parts of a logit */
    uint64_t *counters; /* [CTAs of the grid's first dimension][ROUTE_BARRIER_COUNTERS] */
    uint64_t base;      /* what this launch's counters count from */
    int32_t pitch;
    int32_t arrivals;        /* of CTAs with parts of the same tokens' logits; 1: there are no partials */
    int32_t waiters;         /* of those, how many may route */
    int32_t turn_tokens;     /* that one routes at a time, one a warp */
    int32_t timeout;        /* clocks to wait for others */
    int32_t slots;           /* of K */
    int32_t slots_per_cta;   /* the last ones may have fewer */
    int32_t splits;          /* of K, by clusters */
    int32_t scratch_experts; /* that a warp's scratch has room for */
    int32_t barriers_at;     /* in shared memory */
    int32_t early;           /* slots whose weights are loaded before the kernel before has ended */
} sm90_route_params;

#endif
