/* Tiles of the sm90 halves family, and the sizes of its shared memory, for host and device. */
#ifndef NK_SM90_HALVES_CONFIG_H
#define NK_SM90_HALVES_CONFIG_H

#include "sm90/gemm/sm90_gemm_config.h"

#define SM90_HALVES_PANEL 64 /* elements: the 128 bytes of a row that tensor maps swizzle */
#define SM90_HALVES_PANEL_ROW_BYTES (2 * SM90_HALVES_PANEL)

/* X(name, tokens, weight rows, slots of the ring, panels of K in a slot). */
#define SM90_HALVES_TILES(X)    \
    X(h8x128, 8, 128, 6, 2)     \
    X(h32x64, 32, 64, 8, 2)     \
    X(h64x64, 64, 64, 6, 2)     \
    X(h128x64, 128, 64, 8, 1)   \
    X(h128x128, 128, 128, 6, 1) \
    X(h192x128, 192, 128, 5, 1)

enum {
#define SM90_HALVES_INDEX(name, ...) SM90_HALVES_##name,
    SM90_HALVES_TILES(SM90_HALVES_INDEX)
#undef SM90_HALVES_INDEX
        SM90_HALVES_TILE_COUNT
};

/* A warpgroup for each 64 weight rows, and a warp that loads. */
#define SM90_HALVES_THREADS(rows) (2 * (rows) + 32)

/* struct halves_memory of sm90_halves.cu, which compares. */
#define SM90_HALVES_SLOT_BYTES(tokens, rows, panels) ((panels) * ((tokens) + (rows)) * SM90_HALVES_PANEL_ROW_BYTES)
#define SM90_HALVES_SMEM(tokens, rows, slots, panels) ((slots) * SM90_HALVES_SLOT_BYTES(tokens, rows, panels) + 1024)

#endif
