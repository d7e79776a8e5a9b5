/* The kind_f16 family's tiles and shared memory, for host and device. */
#ifndef NK_SM120_KIND_F16_CONFIG_H
#define NK_SM120_KIND_F16_CONFIG_H

#include "sm120/gemm/sm120_gemm_config.h"

/* Tiles as of sm120_gemm_config.h, a step of 64 elements of K at a time: a token's row then is 128 bytes.
 *
 * X(name, TOKENS, WARPS_M, STAGES, CTAs per SM) */
#define SM120_KIND_F16_TILES(X) \
    X(t16, 16, 1, 7, 2)         \
    X(t64, 64, 1, 3, 2)         \
    X(t128, 128, 2, 4, 1)

enum {
#define SM120_KIND_F16_INDEX(name, ...) SM120_KIND_F16_##name,
    SM120_KIND_F16_TILES(SM120_KIND_F16_INDEX)
#undef SM120_KIND_F16_INDEX
        SM120_KIND_F16_TILE_COUNT
};

#define SM120_KIND_F16_STEP 64 /* elements of K: four scale factors, a word */
#define SM120_KIND_F16_MMA_K 16

/* CTAs that K of a tile is divided among, at most: more would add sums for longer than they save. */
#define SM120_KIND_F16_MOST_PARTS 16

/* struct kind_f16_stage of sm120_kind_f16_mainloop.cuh; sm120_multiply_tile() compares. */
#define SM120_KIND_F16_STAGE_BYTES(tokens) \
    (SM120_GEMM_TILE_N * (SM120_KIND_F16_STEP / 2 + 4) + (tokens) * SM120_KIND_F16_STEP * 2)
#define SM120_KIND_F16_SMEM(tokens, stages) SM120_SMEM(tokens, (stages) * SM120_KIND_F16_STAGE_BYTES(tokens))

#endif
