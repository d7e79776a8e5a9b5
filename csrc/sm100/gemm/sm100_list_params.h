/* The parameters of one launch for a list of groups, for host and device. */
#ifndef NK_SM100_LIST_PARAMS_H
#define NK_SM100_LIST_PARAMS_H

#include "cuda/cuda_tensor_map.h"
#include "sm100_gemm_config.h"

#define SM100_LIST_GROUPS 32 /* 20 KB: parameters may have 32,764 bytes, but all of them travel with every launch */

typedef struct sm100_list_group {
    cuda_tensor_map map_m, map_n; /* the operands' codes */
    nk_gemm_problem gemm;
    sm100_gemm_params params;
    int32_t first_tile; /* its number among the tiles of all groups */
} sm100_list_group;

typedef struct sm100_list_params {
    sm100_list_group group[SM100_LIST_GROUPS]; /* those with the longest tiles first */
    sm100_gemm_params params; /* for all groups: how many tiles there are, and sf_by_bulk_copy, which all share */
    int32_t count;
} sm100_list_params;

#endif
