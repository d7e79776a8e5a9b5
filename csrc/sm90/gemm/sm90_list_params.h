/* What one launch for a list of groups takes, and the tiles that it has, for host and device. */
#ifndef NK_SM90_LIST_PARAMS_H
#define NK_SM90_LIST_PARAMS_H

#include "cuda/cuda_tensor_map.h"
#include "sm90_gemm_config.h"

/* X(tile of the family whose ring and warps they have, tokens of a group's tiles, the fewest first). Each group has
 * tiles of one of these widths. */
#define SM90_LIST_RINGS(X)        \
    X(w32, 8, 16, 32)             \
    X(w128, 64, 80, 96, 112, 128) \
    X(w256, 64, 96, 128, 160, 192, 224)

#define SM90_LIST_WIDTHS 8  /* of a tile, at most */
#define SM90_LIST_GROUPS 32 /* 14 KB: parameters may have 32,764 bytes, but all of them travel with every launch */

/* Tiles of all groups are numbered, the longest first. Tokens of all groups are rows of one matrix in the workspace. */
typedef struct sm90_list_group {
    cuda_tensor_map weights;
    nk_gemm_problem gemm; /* of which row 0 of the output is that of token 0 of the workspace */
    sm90_gemm_work work;
    int32_t first_tile, first_row;
    int32_t width, tokens; /* number of a tile's width, and what it is */
} sm90_list_group;

typedef struct sm90_list {
    cuda_tensor_map tokens[SM90_LIST_WIDTHS]; /* with a box of each width */
    sm90_gemm_work work;                      /* of all: how many tiles there are */
    int32_t count;
    sm90_list_group group[SM90_LIST_GROUPS];
} sm90_list;

/* What the first kernel reads: rows of the workspace from first_row on are of a group's tokens. */
typedef struct sm90_list_rows {
    nk_operand a;
    int64_t k;
    int32_t first_row, steps; /* steps that are written: whole slots */
} sm90_list_rows;

typedef struct sm90_list_tokens {
    sm90_gemm_tokens to;
    int32_t count;
    sm90_list_rows group[SM90_LIST_GROUPS];
} sm90_list_tokens;

#endif
