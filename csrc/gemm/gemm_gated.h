/* grouped_dual_gemm as one dual_gemm of all experts' tokens, for host and device. */
#ifndef NK_GEMM_GATED_H
#define NK_GEMM_GATED_H

#include "nk_problem.h"

/* b2 begins at the up rows of the first expert: where its blocked scale factors do, within an atom if need be. */
typedef struct gemm_gated {
    nk_device device;
    int64_t m, n, k;
    nk_operand a, b1, b2;
    nk_alpha alpha1, alpha2;
    nk_bias bias1, bias2;
    nk_activation activation;
    nk_output d;
    nk_encoded_output encoded; /* where wanted, in place of d */
    nk_row_scale row_scale;
} gemm_gated;

#endif
