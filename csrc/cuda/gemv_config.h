/* Sizes, parameters and shared memory of the kernels for few tokens on Blackwell, for host and device. */
#ifndef NK_GEMV_CONFIG_H
#define NK_GEMV_CONFIG_H

#include "nk_format.h"
#include "nk_problem.h"

#include <stdbool.h>

/* X(name, warps of a CTA). Two CTAs of 8 warps use one SM, a CTA of 16 has it alone. */
#define GEMV_TILES(X) \
    X(w8, 8)          \
    X(w16, 16)

#define GEMV_WARPS 16              /* of an SM */
#define GEMV_CHUNK 64              /* elements that a lane loads at once: 32 bytes of codes */
#define GEMV_STEP (4 * GEMV_CHUNK) /* elements of K in a step, of four lanes: a line of codes */
#define GEMV_M8 8                  /* rows of W, which is the MMA's M */
#define GEMV_TILE_M8S 2
#define GEMV_TILE_ROWS (GEMV_TILE_M8S * GEMV_M8)
#define GEMV_STAGES 3      /* of a warp's pipeline, which is in registers: one step each */
#define GEMV_MAX_TOKENS 8  /* N of the MMA */
#define GEMV_MAX_CLUSTER 8 /* CTAs that split K */

/* Scheduler parameters: stream-K within a CTA, split K over a cluster.
 *
 * A cluster takes `rows` consecutive positions, and each of its CTAs `k_steps` K steps of them. A CTA's steps, tile by
 * tile, are divided evenly among its warps: each takes steps_per_warp of them in turn, so it may begin in the middle of
 * a tile. */
typedef struct gemv_scheduler {
    int64_t positions;            /* of the matrix */
    int32_t clusters, cluster;    /* of a batch; CTAs of one */
    int32_t rows, epilogue_rows;  /* of a cluster; those whose epilogue each CTA has: the last CTA may have fewer */
    int32_t k_steps, all_k_steps; /* of a CTA, of the matrix; the last CTA may have fewer */
    int32_t steps_per_warp;
    int32_t split_k; /* within the CTA: most warps that have steps of one tile */
    int32_t tokens;
    int32_t early; /* weights may be read while the kernels before this one run */
} gemv_scheduler;

typedef struct gemv_args {
    gemv_scheduler scheduler;
    nk_gemm_problem problem;
} gemv_args;

NK_HD int64_t gemv_k_steps(int64_t k) { return nk_ceil_div(k, GEMV_STEP); }

/* Positions number the rows in the order in which tiles take them. Linear scale factors: the order of rows. Blocked:
 * the order of scale factors in memory, four rows by four rows (32 apart). The last atom may have fewer, and lack rows
 * of four. */
NK_HD int64_t gemv_positions(int64_t rows, bool blocked)
{
    const int64_t rest = rows % NK_SF_ATOM_ROWS;
    return blocked ? rows - rest + 4 * (rest < 32 ? rest : 32) : rows;
}

NK_HD int64_t gemv_row(int64_t position, bool blocked)
{
    const int64_t in_atom = position % NK_SF_ATOM_ROWS;
    return blocked ? position - in_atom + in_atom / 4 + in_atom % 4 * 32 : position;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Shared memory: the head; the tokens, as much of K as the CTA has; partial sums [split][position][token]; if a     */
/* cluster splits K, an inbox [CTA][row of this CTA's epilogue][token]                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct gemv_head {
    uint64_t inbox_full, unused;
} gemv_head;

/* A lane's elements of one token in 16 bits, and for a single token their scale factors. With more tokens `sf` is
 * padding, which keeps neighbouring chunks off each other's banks. */
typedef struct gemv_token_chunk {
    uint8_t elements[GEMV_CHUNK * 2];
    float sf[GEMV_CHUNK / NK_SF_VEC];
} gemv_token_chunk;

/* From one token to the next: half a line off, so that two tokens' chunks lie in different banks. */
NK_HD int32_t gemv_token_bytes(int32_t k_steps)
{
    return k_steps * 4 * (int32_t)sizeof(gemv_token_chunk) + (k_steps % 2 ? 0 : 64);
}

NK_HD int64_t gemv_partials_at(int32_t k_steps, int32_t tokens)
{
    return (int64_t)sizeof(gemv_head) + (int64_t)tokens * gemv_token_bytes(k_steps);
}

NK_HD int64_t gemv_smem_bytes(const gemv_scheduler *w)
{
    const int64_t inbox = w->cluster > 1 ? (int64_t)w->cluster * w->epilogue_rows : 0;
    return gemv_partials_at(w->k_steps, w->tokens) + 4 * w->tokens * ((int64_t)w->split_k * w->rows + inbox);
}

#endif
