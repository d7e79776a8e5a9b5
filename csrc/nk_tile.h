/* Tiles by name, and which of them NVFP4KERN_TILE forces. */
#ifndef NK_TILE_H
#define NK_TILE_H

#include "nk_settings.h"
#include "nk_status.h"
#include "nvfp4kern.h"

/* Kernels for one kind of work on one row of the backend table, and the tiles that their plan chooses from. */
typedef struct nk_family {
    const char *row, *name;
    const char *const *tiles; /* names, NULL after the last; a tile's index is that of the family's own table */
    const char *alias;        /* an earlier name, which NVFP4KERN_TILE still takes, or NULL */
    /* Says of a tile what the family knows beside its name, or NULL: nothing. `of` is the family's own. */
    void (*describe)(const void *of, int tile, nk_tile_info *info);
    const void *of;
} nk_family;

#define NK_TILE_NAME(name, ...) #name,
#define NK_TILE_NAMES(TILES) ((const char *const[]){TILES(NK_TILE_NAME) NULL})

/* NVFP4KERN_TILE is a list: the message names what this build has where an entry is none of it, or where two entries
 * force a tile of one family. */
nk_status nk_tile_check(const nk_settings *settings);

#define NK_TILE_ANY (-1)

/* For costs, of which a plan takes the least. */
static inline double nk_larger(double x, double y) { return x > y ? x : y; }

int nk_tile_named(const char *list, const nk_family *family);

/* The index of the tile that checked settings force on a family, or NK_TILE_ANY: the plan chooses. */
static inline int nk_tile_forced(const nk_settings *settings, const nk_family *family)
{
    return settings->tile[0] ? nk_tile_named(settings->tile, family) : NK_TILE_ANY;
}

/* Fails a call because the tile that is forced on its family cannot serve it; a format and its values say why. */
#define NK_TILE_REFUSE(family, tile, why, ...)                                                                        \
    nk_fail(NK_BACKEND_ERROR, "NVFP4KERN_TILE: %s/%s:%s cannot serve this call: " why, (family)->row, (family)->name, \
            (family)->tiles[tile], __VA_ARGS__)

#endif
