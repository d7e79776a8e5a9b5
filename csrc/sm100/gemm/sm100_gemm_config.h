/* Tiles of the sm100 GEMM family, its parameters, shared memory and tensor memory, for host and device. */
#ifndef NK_SM100_GEMM_CONFIG_H
#define NK_SM100_GEMM_CONFIG_H

#include "nk_format.h"
#include "nk_problem.h"

#include <stdbool.h>

#define SM100_GEMM_LANES 128 /* of a CTA: rows of one operand, a lane of tensor memory each */
#define SM100_GEMM_STEP 256  /* elements of K in a stage: a row's 128 bytes of codes, the span of the swizzle */
#define SM100_GEMM_BLOCK 64  /* of one product: four scale factors a row, an atom for 128 rows */
#define SM100_GEMM_BLOCKS (SM100_GEMM_STEP / SM100_GEMM_BLOCK)
#define SM100_GEMM_CODE_BYTES (SM100_GEMM_STEP / 2)
#define SM100_GEMM_SF_BYTES (SM100_GEMM_BLOCKS * NK_SF_ATOM_BYTES) /* of a row of atoms in a stage */

/* X(name, CTAS, COLUMNS, PARTS, ACCUMULATORS, the same for two matrices of weights, PAIRS): a tile is 128 rows of one
 * operand for each of its CTAs, the lanes of their tensor memory, x COLUMNS rows of the other operand, its columns. Two
 * CTAs are a pair, whose products are one: each CTA loads half of the columns. K is divided among PARTS of a cluster,
 * each of them a CTA or a pair; or PAIRS of a cluster share the columns, each with lanes of its own. Which operand is
 * which follows from the problem: the plan says it. Of dual_gemm, as many rows of either matrix of weights are the
 * lanes. */
#define SM100_GEMM_COMMON_TILES(X) \
    X(n64, 1, 64, 1, 3, 2, 1)      \
    X(n128, 1, 128, 1, 2, 1, 1)    \
    X(p64, 2, 64, 1, 3, 2, 1)      \
    X(p128, 2, 128, 1, 2, 1, 1)    \
    X(p192, 2, 192, 1, 2, 1, 1)

/* Not of two matrices of weights, whose sums would fill tensor memory. */
#define SM100_GEMM_WIDE_TILES(X) X(p256, 2, 256, 1, 1, 0, 1)

/* Not of experts, nor of lists. */
#define SM100_GEMM_SPLIT_TILES(X) \
    X(n64k4, 1, 64, 4, 3, 2, 1)   \
    X(p128k2, 2, 128, 2, 2, 1, 1)
#define SM100_GEMM_SHARED_TILES(X) X(p192m2, 2, 192, 1, 2, 1, 2)
#define SM100_GEMM_WIDE_SHARED_TILES(X) X(p256m2, 2, 256, 1, 1, 0, 2)

#define SM100_GEMM_TILES(X)                                                               \
    SM100_GEMM_COMMON_TILES(X) SM100_GEMM_WIDE_TILES(X) SM100_GEMM_SPLIT_TILES(X)         \
    SM100_GEMM_SHARED_TILES(X) SM100_GEMM_WIDE_SHARED_TILES(X)
#define SM100_GEMM_DUAL_TILES(X) SM100_GEMM_COMMON_TILES(X) SM100_GEMM_SPLIT_TILES(X) SM100_GEMM_SHARED_TILES(X)
#define SM100_GEMM_GROUPED_TILES(X) SM100_GEMM_COMMON_TILES(X) SM100_GEMM_WIDE_TILES(X)
#define SM100_GEMM_GATED_EXPERT_TILES(X) SM100_GEMM_COMMON_TILES(X)

enum {
#define SM100_GEMM_INDEX(name, ...) SM100_GEMM_##name,
    SM100_GEMM_TILES(SM100_GEMM_INDEX)
#undef SM100_GEMM_INDEX
        SM100_GEMM_TILE_COUNT
};

/* Warps. Warp w of the epilogue has lanes 32 w and up of tensor memory, so the epilogue comes first. */
#define SM100_GEMM_EPILOGUE_WARPS 4
#define SM100_GEMM_FACTOR_WARPS 4
#define SM100_GEMM_PRODUCER (SM100_GEMM_EPILOGUE_WARPS + SM100_GEMM_FACTOR_WARPS)
#define SM100_GEMM_ISSUER (SM100_GEMM_PRODUCER + 1)
#define SM100_GEMM_THREADS (32 * (SM100_GEMM_ISSUER + 1))

/* Where pairs share columns, a warp more asks for tiles: launch control gives them to whoever is free. Clusters of four
 * need not all find room at once, and one that came late would have as many tiles before it as the others had. */
#define SM100_GEMM_ASKS(pairs) ((pairs) > 1)
#define SM100_GEMM_ASKER (SM100_GEMM_ISSUER + 1)
#define SM100_GEMM_THREADS_OF(pairs) (SM100_GEMM_THREADS + (SM100_GEMM_ASKS(pairs) ? 32 : 0))
#define SM100_GEMM_RESPONSES 2 /* that are under way or not yet read by all */

/* Shared memory: struct memory of sm100_gemm_parts.cuh; run() of sm100_gemm.cuh compares. As many stages as fit beside
 * what follows them: barriers and, of experts, their list. */
#define SM100_GEMM_COLUMN_ATOMS(columns) (((columns) + NK_SF_ATOM_ROWS - 1) / NK_SF_ATOM_ROWS) /* rows of atoms */
#define SM100_GEMM_STAGE_BYTES(ctas, columns, matrices)                             \
    (((matrices) * SM100_GEMM_LANES + (columns) / (ctas)) * SM100_GEMM_CODE_BYTES + \
     ((matrices) + SM100_GEMM_COLUMN_ATOMS(columns)) * SM100_GEMM_SF_BYTES)
/* Of a split tile's sums a part finishes those of some columns, and gets the others' sums of these. */
#define SM100_GEMM_INBOX_BYTES(columns, parts, matrices) \
    (((parts) - 1) * (matrices) * ((columns) / (parts)) * SM100_GEMM_LANES * 4)
#define SM100_GEMM_SMEM_MOST (227 * 1024)
#define SM100_GEMM_BARRIER_BYTES 1024
#define SM100_GEMM_LIST_ROOM 8192 /* of 511 experts; more only where stages leave room */
#define SM100_GEMM_STAGES(ctas, columns, parts, matrices)                      \
    ((SM100_GEMM_SMEM_MOST - SM100_GEMM_BARRIER_BYTES - SM100_GEMM_LIST_ROOM - \
      SM100_GEMM_INBOX_BYTES(columns, parts, matrices)) /                      \
     SM100_GEMM_STAGE_BYTES(ctas, columns, matrices))
#define SM100_GEMM_SMEM(ctas, columns, parts, matrices)                                                    \
    (SM100_GEMM_STAGES(ctas, columns, parts, matrices) * SM100_GEMM_STAGE_BYTES(ctas, columns, matrices) + \
     SM100_GEMM_INBOX_BYTES(columns, parts, matrices) + SM100_GEMM_BARRIER_BYTES)

/* Tensor memory, in columns: the accumulators, then the scale factors of the last steps. */
#define SM100_GEMM_TMEM 512
#define SM100_GEMM_ATOM_COLUMNS 4
#define SM100_GEMM_SF_COLUMNS (SM100_GEMM_BLOCKS * SM100_GEMM_ATOM_COLUMNS) /* of a row of atoms in a step */

enum { SM100_GEMM_OF_LANES, SM100_GEMM_OF_COLUMNS, SM100_GEMM_OF_UPS, SM100_GEMM_OPERANDS }; /* ups: lanes, too */

/* How a product is divided. Tiles lie batch after batch, of a batch those of the same columns one after the other. */
typedef struct sm100_gemm_work {
    bool tokens_on_lanes;                 /* else weights are on the lanes, tokens on the columns */
    bool copied[SM100_GEMM_OPERANDS];     /* scale factors, as whole atoms; else lanes arrange them */
    bool one_matrix[SM100_GEMM_OPERANDS]; /* the same for all batches */
    int32_t lane_tiles, column_tiles;     /* of a batch */
    int32_t tiles;                        /* of all batches; of experts, as many as there may be */
    int32_t steps;                        /* of K */
    int32_t ups_into_atom;                /* of the ups' blocked scale factors: rows of gates in their first atom */
} sm100_gemm_work;

/* Contiguous grouped GEMM: expert g has tokens offsets[g] .. offsets[g+1], on the device, and weights of batch g. Where
 * `rows` has data, these are rows of the result, and it says which token each is of. */
typedef struct sm100_gemm_experts {
    const int32_t *offsets;
    int64_t count;
    int64_t atom_rows; /* of the tokens' blocked scale factors: in so many rows of atoms */
    nk_token_rows rows;
} sm100_gemm_experts;

/* What a CTA lists of an expert; behind the last one is where all end. */
typedef struct sm100_gemm_expert {
    int32_t first_tile, first_row, first_atom, unused;
} sm100_gemm_expert;
#define SM100_GEMM_EXPERT_BYTES(experts) ((int64_t)sizeof(sm100_gemm_expert) * ((experts) + 1))

#endif
