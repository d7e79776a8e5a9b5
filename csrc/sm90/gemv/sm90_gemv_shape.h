/* How a gemv's work is dealt out to CTAs, clusters and warps. */
#ifndef NK_SM90_GEMV_SHAPE_H
#define NK_SM90_GEMV_SHAPE_H

#include "backend.h"
#include "cuda/cuda_launch.h"
#include "sm90_gemv_config.h"

typedef enum sm90_gemv_form {
    SM90_GEMV_CODES,
    SM90_GEMV_HALVES,
    SM90_GEMV_FEW_CODES,
    SM90_GEMV_FEW_HALVES,
    SM90_GEMV_FEW_BFLOATS
} sm90_gemv_form;

typedef enum sm90_gemv_path { SM90_GEMV_LINEAR, SM90_GEMV_BLOCKED, SM90_GEMV_NARROW } sm90_gemv_path;

/* X(name, warps of a CTA, whether its tiles are short, whether W comes by tensor map). Two CTAs of 8 warps share an SM,
 * one of 16 has it alone. Only one NVFP4 token has short tiles and tensor maps. */
#define SM90_GEMV_TILES(X)               \
    X(tall8, SM90_GEMV_WARPS / 2, 0, 0)  \
    X(tall16, SM90_GEMV_WARPS, 0, 0)     \
    X(short8, SM90_GEMV_WARPS / 2, 1, 0) \
    X(short16, SM90_GEMV_WARPS, 1, 0)    \
    X(map8, SM90_GEMV_WARPS / 2, 0, 1)   \
    X(map16, SM90_GEMV_WARPS, 0, 1)

enum {
#define SM90_GEMV_INDEX(name, ...) SM90_GEMV_##name,
    SM90_GEMV_TILES(SM90_GEMV_INDEX)
#undef SM90_GEMV_INDEX
        SM90_GEMV_TILE_COUNT
};

typedef struct sm90_gemv_shape {
    sm90_gemv_work work;
    uint32_t starts[SM90_GEMV_WARPS][2];
    bool is_short;
    bool by_tensor_map;              /* weights come by tensor map */
    int32_t tile, warps, smem_bytes; /* tile: SM90_GEMV_tall8, .. */
    int64_t clusters;                /* of a batch */
} sm90_gemv_shape;

/* How many clusters of each size have room at once, of CTAs that have an SM alone [0], and of two CTAs an SM [1]. 0
 * means that the size is not to be used. A GPU's clusters of SMs are no multiple of these, and differ from GPU to GPU.
 */
typedef struct sm90_gemv_clusters {
    const cuda_gpu *gpu;
    int32_t at_once[2][SM90_GEMV_CLUSTER + 1];
} sm90_gemv_clusters;

sm90_gemv_form sm90_gemv_form_of(const nk_gemv_problem *p);
sm90_gemv_path sm90_gemv_path_of(const nk_gemv_problem *p);

/* Whether tensor maps can describe the weights. */
bool sm90_gemv_has_maps(const nk_gemv_problem *p);

/* Rows of a tile. */
int32_t sm90_gemv_tile_rows(const nk_gemv_problem *p, bool is_short);

/* Why none of this tile's shapes can do it whatever the GPU, or NULL. */
const char *sm90_gemv_why_not(const nk_gemv_problem *p, int tile);

/* The fastest shape of those that fit, of one tile or NK_TILE_ANY; false where none does. */
bool sm90_gemv_find_shape(const nk_gemv_problem *p, const sm90_gemv_clusters *room, int forced, sm90_gemv_shape *best);

#endif
