/* A list of groups by one launch of the sm90 GEMM family, behind one that brings all tokens to 16 bits. */
#ifndef NK_SM90_LIST_H
#define NK_SM90_LIST_H

#include "sm90_gemm_plan.h"
#include "sm90_list_params.h"

/* A group that is not empty, by its number in the list, and its tiles. */
typedef struct sm90_list_member {
    int32_t group;
    int32_t width, tokens; /* see sm90_list_group */
} sm90_list_member;

typedef struct sm90_list_choice {
    cuda_kernel *product;
    int32_t tile, sms, count;
    nk_pdl pdl;
    sm90_list_member member[SM90_LIST_MAX_GROUPS]; /* those with the longest tiles first */
} sm90_list_choice;

/* Plans the one launch. Where *apart is a reason, there is none, and nothing is planned. */
nk_status sm90_list_plan(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                         sm90_list_choice *choice, const char **apart);
nk_status sm90_list_run(const nk_grouped_gemm_problem *p, const sm90_list_choice *choice, const nk_exec *exec);

#endif
