/* Contiguous grouped_gemm of 16-bit weights by wgmma. */
#ifndef NK_SM90_KIND_F16_H
#define NK_SM90_KIND_F16_H

#include "sm90/sm90_backend.h"

typedef struct sm90_kind_f16_choice {
    cuda_kernel *kernel;
    int32_t tile, sms;
    bool n_major, overlap;
} sm90_kind_f16_choice;

nk_status sm90_kind_f16_plan(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                             sm90_kind_f16_choice *choice);
nk_status sm90_kind_f16_run(const nk_grouped_gemm_problem *p, const sm90_kind_f16_choice *choice, const nk_exec *exec);

#endif
