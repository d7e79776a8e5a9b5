/* Tiles of the sm90 kind_f16 family, and the sizes of its shared memory, for host and device. */
#ifndef NK_SM90_KIND_F16_CONFIG_H
#define NK_SM90_KIND_F16_CONFIG_H

#include "sm90/gemm/sm90_gemm_config.h"

#define SM90_KIND_F16_SWIZZLE_K 64 /* elements in a 128-byte row, which tensor maps swizzle */
#define SM90_KIND_F16_SWIZZLE_BYTES (2 * SM90_KIND_F16_SWIZZLE_K)

/* X(name, tile_m, tile_n, tile_k, stages): tokens, weight rows, elements of K. */
#define SM90_KIND_F16_TILES(X)   \
    X(h8x128, 8, 128, 128, 6)    \
    X(h32x64, 32, 64, 128, 8)    \
    X(h64x64, 64, 64, 128, 6)    \
    X(h128x64, 128, 64, 64, 8)   \
    X(h128x128, 128, 128, 64, 6) \
    X(h192x128, 192, 128, 64, 5)

enum {
#define SM90_KIND_F16_INDEX(name, ...) SM90_KIND_F16_##name,
    SM90_KIND_F16_TILES(SM90_KIND_F16_INDEX)
#undef SM90_KIND_F16_INDEX
        SM90_KIND_F16_TILE_COUNT
};

/* A consumer warpgroup for each 64 weight rows, and a producer warp. */
#define SM90_KIND_F16_THREADS(tile_n) (2 * (tile_n) + 32)

/* struct kind_f16_memory of sm90_kind_f16.cu, which compares. */
#define SM90_KIND_F16_STAGE_BYTES(tile_m, tile_n, tile_k) (2 * (tile_k) * ((tile_m) + (tile_n)))
#define SM90_KIND_F16_SMEM(tile_m, tile_n, tile_k, stages) \
    ((stages) * SM90_KIND_F16_STAGE_BYTES(tile_m, tile_n, tile_k) + 1024)

#endif
