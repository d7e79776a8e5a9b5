/* What one launch for a list of groups takes, and the tiles that it has, for host and device. */
#ifndef NK_SM90_LIST_PARAMS_H
#define NK_SM90_LIST_PARAMS_H

#include "cuda/cuda_tensor_map.h"
#include "sm90_gemm_config.h"

/* X(tile of the family whose pipeline and warps a kernel has, tile_m of its groups, ascending). Each group has one of
 * these tile_m. */
#define SM90_LIST_PIPELINES(X)    \
    X(w32, 8, 16, 32)             \
    X(w128, 64, 80, 96, 112, 128) \
    X(w256, 64, 96, 128, 160, 192, 224)

#define SM90_LIST_MAX_TILE_MS 8 /* of a pipeline */
/* 17 KB of parameters: a launch may have 32,764 bytes, but all of them travel with it. */
#define SM90_LIST_MAX_GROUPS 32

/* Tiles of all groups are numbered, the longest first. Tokens of all groups are rows of one matrix in the workspace. */
typedef struct sm90_list_group {
    cuda_tensor_map weights;
    nk_gemm_problem gemm; /* row 0 of its output and of row_scale is that of token 0 of the workspace */
    sm90_gemm_params params;
    int32_t first_tile, first_row;
    int32_t tile_m_index, tile_m;
} sm90_list_group;

typedef struct sm90_list {
    cuda_tensor_map tokens[SM90_LIST_MAX_TILE_MS]; /* with a box of each tile_m */
    sm90_gemm_params params;                       /* of all groups: has the number of tiles alone */
    int32_t count;
    sm90_list_group group[SM90_LIST_MAX_GROUPS];
} sm90_list;

/* A group's tokens are rows of the workspace from first_row on. */
typedef struct sm90_list_rows {
    nk_operand a;
    int64_t k;
    int32_t first_row, k_steps; /* whole K tiles are written */
} sm90_list_rows;

/* What the prologue kernel takes. */
typedef struct sm90_list_prepare_a {
    sm90_prepared_a to;
    int32_t count;
    sm90_list_rows group[SM90_LIST_MAX_GROUPS];
} sm90_list_prepare_a;

#endif
