/* The GEMM family's tiles and shared memory, for host and device. */
#ifndef NK_SM120_GEMM_CONFIG_H
#define NK_SM120_GEMM_CONFIG_H

#include "nk_format.h"

/* A CTA multiplies 128 weight rows by TOKENS tokens, by four warps along N and WARPS_M along M, a step of 128 elements
 * of K at a time; STAGES steps are in shared memory, of which a CTA has 99 KB. CTAs share an SM's 100 KB.
 *
 * X(name, TOKENS, WARPS_M, STAGES, CTAs per SM) */
#define SM120_GEMM_TILES(X) \
    X(t16, 16, 1, 4, 2)     \
    X(t64, 64, 1, 3, 2)     \
    X(t128, 128, 2, 4, 1)

enum {
#define SM120_GEMM_INDEX(name, ...) SM120_GEMM_##name,
    SM120_GEMM_TILES(SM120_GEMM_INDEX)
#undef SM120_GEMM_INDEX
        SM120_GEMM_TILE_COUNT
};

#define SM120_GEMM_TILE_N NK_SF_ATOM_ROWS /* weight rows */
#define SM120_GEMM_STEP 128               /* elements of K */
#define SM120_GEMM_MMA_K 64
#define SM120_GEMM_THREADS(warps_m) (128 * (warps_m))

/* Sizes for the host, which cannot see the templates; a static_assert in every kernel compares the two. The words are
 * scale factors of 64 elements, those of tokens in groups of 32 rows. */
#define SM120_GEMM_SF_WORDS(tokens) ((tokens) < 32 ? 32 : (tokens))
#define SM120_GEMM_STAGE_BYTES(tokens)                        \
    ((SM120_GEMM_TILE_N + (tokens)) * (SM120_GEMM_STEP / 2) + \
     (SM120_GEMM_TILE_N + SM120_GEMM_SF_WORDS(tokens)) * 4 * (SM120_GEMM_STEP / SM120_GEMM_MMA_K))

/* The staged sums overwrite the stages. */
#define SM120_SUM_BYTES(tokens) (4 * (tokens) * (SM120_GEMM_TILE_N + 4))
#define SM120_SMEM(tokens, stages_bytes) \
    ((stages_bytes) > SM120_SUM_BYTES(tokens) ? (stages_bytes) : SM120_SUM_BYTES(tokens))
#define SM120_GEMM_SMEM(tokens, stages) SM120_SMEM(tokens, (stages) * SM120_GEMM_STAGE_BYTES(tokens))

#endif
