/* Sizes, parameters and shared memory of the kernels for few tokens on Blackwell, for host and device. */
#ifndef NK_SM100_GEMV_CONFIG_H
#define NK_SM100_GEMV_CONFIG_H

#include "nk_format.h"
#include "nk_problem.h"

#include <stdbool.h>

/* X(name, warps of a CTA). Two CTAs of 8 warps use one SM, a CTA of 16 has it alone. */
#define SM100_GEMV_TILES(X) \
    X(w8, 8)                \
    X(w16, 16)

#define SM100_GEMV_WARPS 16
#define SM100_GEMV_CHUNK 64                    /* elements that a lane loads at once: 32 bytes of codes */
#define SM100_GEMV_STEP (4 * SM100_GEMV_CHUNK) /* elements of K in a step, of four lanes: a line of codes */
#define SM100_GEMV_OCTET 8                     /* rows */
#define SM100_GEMV_OCTETS 2                    /* of a tile */
#define SM100_GEMV_ROWS (SM100_GEMV_OCTETS * SM100_GEMV_OCTET)
#define SM100_GEMV_AHEAD 3   /* steps that a warp has under way */
#define SM100_GEMV_TOKENS 8  /* most tokens: N of an mma */
#define SM100_GEMV_CLUSTER 8 /* most CTAs that divide K of the same rows */

/* A cluster takes `rows` consecutive positions, and each of its CTAs `k_steps` K steps. A CTA's steps, tile by tile,
 * are dealt to its warps: each takes steps_per_warp of them in turn. */
typedef struct sm100_gemv_work {
    int64_t positions;            /* of the matrix */
    int32_t clusters, cluster;    /* of a batch; CTAs of one */
    int32_t rows, ends;           /* ends: rows that each CTA ends; the last may have fewer */
    int32_t k_steps, all_k_steps; /* of a CTA, of the matrix; the last CTA may have fewer */
    int32_t steps_per_warp;
    int32_t parts; /* of a tile at most: warps that have steps of it */
    int32_t tokens;
    int32_t early; /* weights may be read before the kernels before this one have ended */
} sm100_gemv_work;

typedef struct sm100_gemv_args {
    sm100_gemv_work work;
    nk_gemm_problem problem;
} sm100_gemv_args;

NK_HD int64_t sm100_gemv_k_steps(int64_t k) { return nk_ceil_div(k, SM100_GEMV_STEP); }

/* How many positions rows have: their numbers in the order in which they are dealt. Linear: as they lie. Blocked: row
 * quad by row quad, as their scale factors lie. The last atom may have fewer quads, and lack rows of a quad. */
NK_HD int64_t sm100_gemv_positions(int64_t rows, bool blocked)
{
    const int64_t rest = rows % NK_SF_ATOM_ROWS;
    return blocked ? rows - rest + 4 * (rest < 32 ? rest : 32) : rows;
}

NK_HD int64_t sm100_gemv_row(int64_t position, bool blocked)
{
    const int64_t in_atom = position % NK_SF_ATOM_ROWS;
    return blocked ? position - in_atom + in_atom / 4 + in_atom % 4 * 32 : position;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Shared memory: the head; the tokens, as much of K as the CTA has; partial sums [part][position][token]; where CTAs */
/* share rows, an inbox [CTA][row that this CTA ends][token]                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct sm100_gemv_head {
    uint64_t sums_arrived, unused;
} sm100_gemv_head;

/* A lane's elements of one token in 16 bits. The scale factors are those of a token alone; for more they fill a line
 * up, so that chunks lie in other banks than their neighbours. */
typedef struct sm100_gemv_token_chunk {
    uint8_t halves[SM100_GEMV_CHUNK * 2];
    float sf[SM100_GEMV_CHUNK / NK_SF_VEC];
} sm100_gemv_token_chunk;

/* From one token to the next: half a line off, so that two tokens' chunks lie in other banks. */
NK_HD int32_t sm100_gemv_token_bytes(int32_t k_steps)
{
    return k_steps * 4 * (int32_t)sizeof(sm100_gemv_token_chunk) + (k_steps % 2 ? 0 : 64);
}

NK_HD int64_t sm100_gemv_sums_at(int32_t k_steps, int32_t tokens)
{
    return (int64_t)sizeof(sm100_gemv_head) + (int64_t)tokens * sm100_gemv_token_bytes(k_steps);
}

NK_HD int64_t sm100_gemv_smem_bytes(const sm100_gemv_work *w)
{
    const int64_t inbox = w->cluster > 1 ? (int64_t)w->cluster * w->ends : 0;
    return sm100_gemv_sums_at(w->k_steps, w->tokens) + 4 * w->tokens * ((int64_t)w->parts * w->rows + inbox);
}

#endif
