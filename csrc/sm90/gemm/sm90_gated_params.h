/* grouped_dual_gemm as its kernels take it, for host and device. */
#ifndef NK_SM90_GATED_PARAMS_H
#define NK_SM90_GATED_PARAMS_H

#include "nk_problem.h"

/* A dual_gemm of all experts' tokens: b2 begins at the ups of the first one. */
typedef struct sm90_gated {
    nk_device device;
    int64_t m, n, k;
    nk_operand a, b1, b2;
    nk_alpha alpha1, alpha2;
    nk_activation activation;
    nk_output d;
    nk_encoded_output encoded; /* where wanted, in place of d */
} sm90_gated;

#endif
