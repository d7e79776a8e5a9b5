/* Tiles of the sm100 halves family, and the sizes of its shared memory and tensor memory, for host and device. */
#ifndef NK_SM100_HALVES_CONFIG_H
#define NK_SM100_HALVES_CONFIG_H

#include "sm100/gemm/sm100_gemm_config.h"

#define SM100_HALVES_STEP 128                      /* elements of K in a stage: a weight row's 64 bytes of codes */
#define SM100_HALVES_K16S (SM100_HALVES_STEP / 16) /* products of a step */
#define SM100_HALVES_CODE_BYTES (SM100_HALVES_STEP / 2)
#define SM100_HALVES_PANEL 64 /* elements: the 128 bytes of a 16-bit row that tensor maps swizzle */
#define SM100_HALVES_PANELS (SM100_HALVES_STEP / SM100_HALVES_PANEL)
#define SM100_HALVES_PANEL_ROW_BYTES (2 * SM100_HALVES_PANEL)
#define SM100_HALVES_ATOMS (SM100_HALVES_STEP / NK_SF_VEC / NK_SF_ATOM_COLS) /* of 128 rows, in a step */
#define SM100_HALVES_SF_BYTES (SM100_HALVES_ATOMS * NK_SF_ATOM_BYTES)

/* X(name, CTAS, COLUMNS, PARTS, ACCUMULATORS, the same for two matrices of weights): a tile is 128 weight rows of each
 * matrix for each of its CTAs, the lanes of their tensor memory, x COLUMNS tokens, its columns. Two CTAs are a pair,
 * whose products are one: each CTA loads half of the columns. K is divided among PARTS of a cluster. */
#define SM100_HALVES_GROUPED_TILES(X) \
    X(n16, 1, 16, 1, 3, 3)            \
    X(n64, 1, 64, 1, 3, 2)            \
    X(n128, 1, 128, 1, 2, 1)

/* Not of experts: offsets may change while CTAs read them, and a cluster could part. */
#define SM100_HALVES_PAIR_TILES(X) X(p128, 2, 128, 1, 2, 1)

/* Nor of lists. */
#define SM100_HALVES_SPLIT_TILES(X) \
    X(n32k2, 1, 32, 2, 3, 3)        \
    X(n64k4, 1, 64, 4, 3, 2)

/* Neither of experts nor of two matrices, whose sums would fill tensor memory. */
#define SM100_HALVES_WIDE_TILES(X) X(p256, 2, 256, 1, 1, 0)

#define SM100_HALVES_DUAL_TILES(X) SM100_HALVES_GROUPED_TILES(X) SM100_HALVES_PAIR_TILES(X) SM100_HALVES_SPLIT_TILES(X)
#define SM100_HALVES_LIST_TILES(X) SM100_HALVES_GROUPED_TILES(X) SM100_HALVES_PAIR_TILES(X) SM100_HALVES_WIDE_TILES(X)
#define SM100_HALVES_TILES(X) SM100_HALVES_DUAL_TILES(X) SM100_HALVES_WIDE_TILES(X)

enum {
#define SM100_HALVES_INDEX(name, ...) SM100_HALVES_##name,
    SM100_HALVES_TILES(SM100_HALVES_INDEX)
#undef SM100_HALVES_INDEX
        SM100_HALVES_TILE_COUNT
};

/* Warps, where weights are decoded: the epilogue's, then two for each quarter of the lanes, then one that loads, one
 * that copies scale factors, and one that issues. Else nobody decodes and nobody copies. */
#define SM100_HALVES_DECODE_WARPS 8
#define SM100_HALVES_WARPS(decodes) (SM100_GEMM_EPILOGUE_WARPS + ((decodes) ? SM100_HALVES_DECODE_WARPS + 3 : 2))
#define SM100_HALVES_THREADS(decodes) (32 * SM100_HALVES_WARPS(decodes))

/* Shared memory: struct halves_memory of sm100_halves_parts.cuh; run_halves() of sm100_halves.cuh compares. As many
 * stages as fit. */
#define SM100_HALVES_WEIGHT_BYTES(decodes) \
    (SM100_GEMM_LANES * ((decodes) ? SM100_HALVES_CODE_BYTES : 2 * SM100_HALVES_STEP))
#define SM100_HALVES_STAGE_BYTES(decodes, ctas, columns, matrices)                                 \
    ((matrices) * (SM100_HALVES_WEIGHT_BYTES(decodes) + ((decodes) ? SM100_HALVES_SF_BYTES : 0)) + \
     2 * SM100_HALVES_STEP * ((columns) / (ctas)))
#define SM100_HALVES_STAGES(decodes, ctas, columns, parts, matrices)           \
    ((SM100_GEMM_SMEM_MOST - SM100_GEMM_BARRIER_BYTES - SM100_GEMM_LIST_ROOM - \
      SM100_GEMM_INBOX_BYTES(columns, parts, matrices)) /                      \
     SM100_HALVES_STAGE_BYTES(decodes, ctas, columns, matrices))
#define SM100_HALVES_SMEM(decodes, ctas, columns, parts, matrices)    \
    (SM100_HALVES_STAGES(decodes, ctas, columns, parts, matrices) *   \
         SM100_HALVES_STAGE_BYTES(decodes, ctas, columns, matrices) + \
     SM100_GEMM_INBOX_BYTES(columns, parts, matrices) + SM100_GEMM_BARRIER_BYTES)

/* Tensor memory, in columns: the accumulators, then slots of decoded weights, two elements of a row in a column. */
#define SM100_HALVES_DECODED_COLUMNS (SM100_HALVES_STEP / 2) /* of a matrix */

#endif
