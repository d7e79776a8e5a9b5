/* The tiles of Blackwell's router, its launch parameters and the sizes of its memory, for host and device. */
#ifndef NK_SM100_ROUTE_CONFIG_H
#define NK_SM100_ROUTE_CONFIG_H

#include "cuda/cuda_route.h"
#include "nk_problem.h"

#include <stdbool.h>

#define SM100_ROUTE_LANES 128 /* of tensor memory: rows of one operand */
#define SM100_ROUTE_STEP 64   /* elements of K in a stage: the 128 bytes of a row that tensor maps swizzle */
#define SM100_ROUTE_ROW_BYTES (2 * SM100_ROUTE_STEP)
#define SM100_ROUTE_MOST_COLUMNS 256 /* of one product */
#define SM100_ROUTE_MOST_CLUSTER 8   /* CTAs, on every such GPU */

/* X(name, TOKENS, TOKENS_ON_LANES): tokens of a tile. They are columns of tensor memory, beside 128 experts of each CTA
 * on its lanes; or they are its lanes, and the columns have all experts. The first one is that of
 * NVFP4KERN_BATCH_INVARIANT. */
#define SM100_ROUTE_TILES(X) \
    X(c64, 64, false)        \
    X(c16, 16, false)        \
    X(c32, 32, false)        \
    X(c128, 128, false)      \
    X(c256, 256, false)      \
    X(l128, 128, true)

enum {
#define SM100_ROUTE_INDEX(name, ...) SM100_ROUTE_##name,
    SM100_ROUTE_TILES(SM100_ROUTE_INDEX)
#undef SM100_ROUTE_INDEX
        SM100_ROUTE_TILE_COUNT
};

/* Warp w of the first four has lanes 32 w and up of tensor memory. All warps route tokens. */
#define SM100_ROUTE_LANE_WARPS 4
#define SM100_ROUTE_PRODUCER SM100_ROUTE_LANE_WARPS
#define SM100_ROUTE_ISSUER (SM100_ROUTE_PRODUCER + 1)
#define SM100_ROUTE_WARPS 16
#define SM100_ROUTE_THREADS (32 * SM100_ROUTE_WARPS)

/* Where a thread routes the token of its lane. */
#define SM100_ROUTE_THREAD_SELECTS 8 /* at most */
#define SM100_ROUTE_THREAD_GROUPS 32 /* of experts, at most: a thread keeps a bit for each */
#define SM100_ROUTE_THREAD_WORDS (SM100_ROUTE_THREAD_GROUPS + 4) /* scores of groups, later keys: spread over banks */
#define SM100_ROUTE_THREAD_BYTES (4 * SM100_ROUTE_THREAD_WORDS * SM100_ROUTE_LANES)

/* Shared memory: the ring, [stages] of a step's rows on lanes and on columns. Later the same bytes hold the CTA's sums,
 * [tokens][pitch], and behind them the warps' scratch, or the words of each thread. Behind both are the barriers. */
#define SM100_ROUTE_STAGE_BYTES(columns) ((SM100_ROUTE_LANES + (columns)) * SM100_ROUTE_ROW_BYTES)
#define SM100_ROUTE_MOST_STAGES 12
#define SM100_ROUTE_PITCH(experts) ((experts) + 4) /* lanes that store four experts each of a row hit all banks */
#define SM100_ROUTE_BARRIER_BYTES (16 * SM100_ROUTE_MOST_STAGES + 16)

/* How one launch divides the work: its clusters have a tile of tokens each. CTA `part * expert_tiles + tile` of a
 * cluster multiplies a tile of experts over a part of K. */
typedef struct sm100_route_work {
    bool tokens_on_lanes;
    bool by_thread;        /* a thread routes the token of its lane; else warps route tokens */
    int32_t tokens;        /* of a tile */
    int32_t experts;       /* of a CTA: 128 on lanes, or all of them on columns, rounded up to 16 */
    int32_t expert_tiles;  /* of a cluster */
    int32_t parts;         /* of K, of a cluster; each has some of the steps */
    int32_t steps, stages; /* of K; of the ring */
    int32_t early;         /* stages whose weights are loaded before the kernel before has ended */
    int32_t scratch_at, scratch_experts, barriers_at; /* in shared memory; experts that a warp's scratch has room for */
    int32_t tmem_columns;                             /* allocated: a power of two from 32 on */
    uint32_t instruction;                             /* descriptor (PTX ISA, 9.7.16.4.2) */
} sm100_route_work;

#endif
