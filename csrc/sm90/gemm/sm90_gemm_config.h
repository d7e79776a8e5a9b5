/* Tiles of the sm90 GEMM family, its parameters and the sizes of its shared memory, for host and device. */
#ifndef NK_SM90_GEMM_CONFIG_H
#define NK_SM90_GEMM_CONFIG_H

#include "nk_format.h"
#include "nk_problem.h"

#include <stdbool.h>

#define SM90_GEMM_STEP 128 /* elements of K in a step: a row's 64 bytes of codes, eight scale factors */
#define SM90_GEMM_CODE_BYTES (SM90_GEMM_STEP / 2)
#define SM90_GEMM_SF_BYTES (NK_SF_ATOM_ROWS * SM90_GEMM_STEP / NK_SF_VEC) /* of a step's atoms of 128 rows */
#define SM90_GEMM_PANEL 64 /* elements: the 128 bytes of a token that tensor maps swizzle */

/* X(name, tokens, weight rows, teams of warpgroups, CTAs of a cluster that divide K, slots of the ring, steps of a
 * slot, slots whose weights are asked for before the kernel before has ended). Two teams divide the steps of a CTA
 * where a tile has 128 rows (t), and have 128 rows each where it has 256 (v). A tile whose K is divided (t, s) takes a
 * CTA, or a cluster, of its own. CTAs walk over tiles whose K is not (w, v, u). 192 rows (s, u) are for sizes of which
 * tiles of 128 rows leave a wave half empty. */
#define SM90_GEMM_DIVIDED_TILES(X)   \
    X(t16, 16, 128, 2, 2, 8, 2, 4)   \
    X(t32, 32, 128, 2, 2, 6, 2, 3)   \
    X(t64, 64, 128, 2, 2, 8, 1, 4)   \
    X(t96, 96, 128, 1, 2, 5, 1, 4)   \
    X(t128, 128, 128, 1, 2, 4, 1, 4) \
    X(s128, 128, 192, 1, 2, 3, 1, 3)
/* Those that grouped_dual_gemm has, too: beside them the others are worth little for experts. */
#define SM90_GATED_EXPERT_TILES(X)   \
    X(v8, 8, 256, 2, 1, 8, 2, 4)     \
    X(v16, 16, 256, 2, 1, 8, 2, 4)   \
    X(v32, 32, 256, 2, 1, 6, 2, 4)   \
    X(w8, 8, 128, 1, 1, 9, 2, 4)     \
    X(w64, 64, 128, 1, 1, 8, 1, 4)   \
    X(w128, 128, 128, 1, 1, 5, 1, 5) \
    X(u96, 96, 192, 1, 1, 5, 1, 4)   \
    X(u128, 128, 192, 1, 1, 4, 1, 4)
#define SM90_GEMM_WHOLE_TILES(X)     \
    SM90_GATED_EXPERT_TILES(X)       \
    X(w32, 32, 128, 1, 1, 6, 2, 3)   \
    X(w96, 96, 128, 1, 1, 6, 1, 4)   \
    X(w256, 256, 128, 1, 1, 3, 1, 3)
#define SM90_GEMM_TILES(X) SM90_GEMM_DIVIDED_TILES(X) SM90_GEMM_WHOLE_TILES(X)

enum {
#define SM90_GEMM_INDEX(name, ...) SM90_GEMM_##name,
    SM90_GEMM_TILES(SM90_GEMM_INDEX)
#undef SM90_GEMM_INDEX
        SM90_GEMM_TILE_COUNT
};

#define SM90_GEMM_MOST_TOKENS 256

/* Weight rows of a slot: a team's, 64 for each of its warpgroups. */
#define SM90_GEMM_SLOT_ROWS(rows) ((rows) == 256 ? 128 : (rows))

/* The teams, and those that load: two warps, or, where accumulators want the registers of the others, a warpgroup. */
#define SM90_GEMM_WIDE(tokens, rows) ((tokens) >= 256 || SM90_GEMM_SLOT_ROWS(rows) > 128)
#define SM90_GEMM_THREADS(tokens, rows, parts) \
    (2 * SM90_GEMM_SLOT_ROWS(rows) * (parts) + (SM90_GEMM_WIDE(tokens, rows) ? 128 : 64))

/* struct memory of sm90_gemm_tile.cuh; run() of sm90_gemm.cuh compares. */
/* Pieces of scale factors in a slot, each as large as those of 128 rows. 192 rows of a matrix, or 96 of each of two,
 * lie in two atoms of it at most. */
#define SM90_GEMM_SF_PIECES(rows, matrices) ((rows) > NK_SF_ATOM_ROWS ? 2 * (matrices) : 1)
#define SM90_GEMM_SLOT_BYTES(tokens, rows, steps, matrices)                                                \
    ((steps) * ((rows) * SM90_GEMM_CODE_BYTES + SM90_GEMM_SF_PIECES(rows, matrices) * SM90_GEMM_SF_BYTES + \
                2 * SM90_GEMM_STEP * (tokens)))
#define SM90_GEMM_SUM_BYTES(tokens, rows, cluster) ((cluster) == 2 ? 2 * (rows) * (tokens) : 0)
#define SM90_GEMM_BARRIER_BYTES(slots) ((2 * (slots) + 2) * 8)
#define SM90_GEMM_SMEM(tokens, rows, cluster, slots, steps, matrices)                     \
    ((slots) * SM90_GEMM_SLOT_BYTES(tokens, SM90_GEMM_SLOT_ROWS(rows), steps, matrices) + \
     SM90_GEMM_SUM_BYTES(tokens, rows, cluster) + 1024 * ((SM90_GEMM_BARRIER_BYTES(slots) + 1023) / 1024))
#define SM90_GEMM_EXPERT_BYTES(experts) (8 * ((experts) + 1)) /* of their list, behind it */

/* How a product is divided. */
typedef struct sm90_gemm_work {
    int32_t row_tiles, token_tiles; /* of a batch */
    int32_t tiles;                  /* of all batches */
    int32_t steps;                  /* of K */
    int32_t slots_per_cta;          /* of K; the last CTA of a cluster may have fewer */
    float product_scale;            /* a sum is the true one over it */
    bool one_matrix;                /* of weights, for all batches or experts */
    int32_t sf_aligned;             /* linear: bytes that rows and steps of scale factors are aligned to, 4 to 16 */
} sm90_gemm_work;

/* Contiguous grouped GEMM: expert g has tokens offsets[g] .. offsets[g+1], on the device, and weights of batch g. Tiles
 * are not divided. */
typedef struct sm90_gemm_experts {
    const int32_t *offsets;
    int64_t count;
    int64_t token_sf_bytes; /* of their blocked scale factors */
    bool wait_first;        /* reads no offset before the kernels before it have ended */
} sm90_gemm_experts;

/* Tokens as the first kernel leaves them: [L][M][K, rounded up to steps] of 16 bits, K in the decode's order, and spare
 * rows of zeros. */
typedef struct sm90_gemm_tokens {
    uint8_t *at;
    int32_t steps;      /* of a row */
    bool release_first; /* lets the product start before it waits itself */
    nk_token_rows rows; /* of the operand, where they are not in order */
} sm90_gemm_tokens;

#define SM90_GEMM_TOKEN_THREADS 256 /* of the first kernel, at most; each makes 16 bytes of a row */

#endif
