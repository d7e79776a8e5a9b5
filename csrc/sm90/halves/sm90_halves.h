/* Contiguous grouped_gemm of 16-bit weights by wgmma. */
#ifndef NK_SM90_HALVES_H
#define NK_SM90_HALVES_H

#include "sm90/sm90_backend.h"

typedef struct sm90_halves_choice {
    cuda_kernel *kernel;
    int32_t tile, sms;
    bool along_n, overlap;
} sm90_halves_choice;

nk_status sm90_halves_plan(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                           sm90_halves_choice *choice);
nk_status sm90_halves_run(const nk_grouped_gemm_problem *p, const sm90_halves_choice *choice, const nk_exec *exec);

#endif
