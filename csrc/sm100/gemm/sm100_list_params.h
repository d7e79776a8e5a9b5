/* What one launch for a list of groups takes, for host and device. */
#ifndef NK_SM100_LIST_PARAMS_H
#define NK_SM100_LIST_PARAMS_H

#include "cuda/cuda_tensor_map.h"
#include "sm100_gemm_config.h"

#define SM100_LIST_GROUPS 32 /* 18 KB: parameters may have 32,764 bytes, but all of them travel with every launch */

typedef struct sm100_list_group {
    cuda_tensor_map lanes, columns; /* of the codes */
    nk_gemm_problem gemm;
    sm100_gemm_work work;
    int32_t first_tile; /* its number among those of all groups */
} sm100_list_group;

typedef struct sm100_list {
    sm100_list_group group[SM100_LIST_GROUPS]; /* those with the longest tiles first */
    sm100_gemm_work work; /* of all: how many tiles there are, and `copied`, which all have alike */
    int32_t count;
} sm100_list;

#endif
