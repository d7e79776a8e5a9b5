/* Tiles of the sm100 kind_f16 family, and the sizes of its shared memory and tensor memory, for host and device. Names
 * are those of sm100_gemm_config.h; weights are always operand M, tokens operand N. */
#ifndef NK_SM100_KIND_F16_CONFIG_H
#define NK_SM100_KIND_F16_CONFIG_H

#include "sm100/gemm/sm100_gemm_config.h"

#define SM100_KIND_F16_TILE_K 128                            /* of a stage: a weight row's 64 bytes of codes */
#define SM100_KIND_F16_K_BLOCKS (SM100_KIND_F16_TILE_K / 16) /* MMAs of a stage */
#define SM100_KIND_F16_CODE_BYTES (SM100_KIND_F16_TILE_K / 2)
#define SM100_KIND_F16_SWIZZLE_K 64 /* of a 16-bit row in a TMA box: 128 bytes, the swizzle's span */
#define SM100_KIND_F16_BOXES (SM100_KIND_F16_TILE_K / SM100_KIND_F16_SWIZZLE_K)
#define SM100_KIND_F16_SWIZZLE_BYTES (2 * SM100_KIND_F16_SWIZZLE_K)
#define SM100_KIND_F16_SF_ATOMS (SM100_KIND_F16_TILE_K / NK_SF_VEC / NK_SF_ATOM_COLS) /* of 128 rows in a stage */
#define SM100_KIND_F16_SF_BYTES (SM100_KIND_F16_SF_ATOMS * NK_SF_ATOM_BYTES)

/* X(name, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS, ACCUMULATORS of dual GEMMs), as SM100_GEMM_COMMON_TILES. */
#define SM100_KIND_F16_GROUPED_TILES(X) \
    X(n16, 1, 16, 1, 3, 3)              \
    X(n64, 1, 64, 1, 3, 2)              \
    X(n128, 1, 128, 1, 2, 1)

/* Not for experts: no kernels of it. The leader's table of experts (make_scheduler()) would allow them. */
#define SM100_KIND_F16_PAIR_TILES(X) X(p128, 2, 128, 1, 2, 1)

/* Not for grouped GEMMs. */
#define SM100_KIND_F16_SPLIT_TILES(X) \
    X(n32k2, 1, 32, 2, 3, 3)          \
    X(n64k4, 1, 64, 4, 3, 2)

/* Not for experts, nor for dual GEMMs: tensor memory has no room for a second accumulator of this width. */
#define SM100_KIND_F16_WIDE_TILES(X) X(p256, 2, 256, 1, 1, 0)

#define SM100_KIND_F16_DUAL_TILES(X) \
    SM100_KIND_F16_GROUPED_TILES(X) SM100_KIND_F16_PAIR_TILES(X) SM100_KIND_F16_SPLIT_TILES(X)
#define SM100_KIND_F16_LIST_TILES(X) \
    SM100_KIND_F16_GROUPED_TILES(X) SM100_KIND_F16_PAIR_TILES(X) SM100_KIND_F16_WIDE_TILES(X)
#define SM100_KIND_F16_TILES(X) SM100_KIND_F16_DUAL_TILES(X) SM100_KIND_F16_WIDE_TILES(X)

enum {
#define SM100_KIND_F16_INDEX(name, ...) SM100_KIND_F16_##name,
    SM100_KIND_F16_TILES(SM100_KIND_F16_INDEX)
#undef SM100_KIND_F16_INDEX
        SM100_KIND_F16_TILE_COUNT
};

/* Warps for NVFP4 weights: the epilogue's; two that decode for each 32 lanes of tensor memory; the producer warp; one
 * that copies scale factors; the MMA warp. 16-bit weights need neither decoding nor scale factors. */
#define SM100_KIND_F16_DECODE_WARPS 8
#define SM100_KIND_F16_WARPS(decodes) (SM100_GEMM_EPILOGUE_WARPS + ((decodes) ? SM100_KIND_F16_DECODE_WARPS + 3 : 2))
#define SM100_KIND_F16_THREADS(decodes) (32 * SM100_KIND_F16_WARPS(decodes))

/* Shared memory: struct kind_f16_smem of sm100_kind_f16_traits.cuh, whose size run_kind_f16() compares. There are as
 * many stages as fit. */
#define SM100_KIND_F16_WEIGHT_BYTES(decodes) \
    (SM100_GEMM_CTA_M * ((decodes) ? SM100_KIND_F16_CODE_BYTES : 2 * SM100_KIND_F16_TILE_K))
#define SM100_KIND_F16_STAGE_BYTES(decodes, cta_group, mma_n, matrices)                                \
    ((matrices) * (SM100_KIND_F16_WEIGHT_BYTES(decodes) + ((decodes) ? SM100_KIND_F16_SF_BYTES : 0)) + \
     2 * SM100_KIND_F16_TILE_K * ((mma_n) / (cta_group)))
#define SM100_KIND_F16_STAGES(decodes, cta_group, mma_n, split_k, matrices)        \
    ((SM100_GEMM_SMEM_CAPACITY - SM100_GEMM_REST_BYTES - SM100_GEMM_EXPERTS_ROOM - \
      SM100_GEMM_INBOX_BYTES(mma_n, split_k, matrices)) /                          \
     SM100_KIND_F16_STAGE_BYTES(decodes, cta_group, mma_n, matrices))
#define SM100_KIND_F16_SMEM(decodes, cta_group, mma_n, split_k, matrices)  \
    (SM100_KIND_F16_STAGES(decodes, cta_group, mma_n, split_k, matrices) * \
         SM100_KIND_F16_STAGE_BYTES(decodes, cta_group, mma_n, matrices) + \
     SM100_GEMM_INBOX_BYTES(mma_n, split_k, matrices) + SM100_GEMM_REST_BYTES)

/* Tensor memory: the accumulators, then stages of decoded weights, two elements of a row in a column. */
#define SM100_KIND_F16_DECODED_COLUMNS (SM100_KIND_F16_TILE_K / 2) /* of a matrix in a stage */

#endif
