/* The cost model of the sm100 gemv family, see gemv_costs. Stated, not measured: no such GPU was at hand. Of an SM's
 * steps it counts instructions, 1.9 of a lane for an element with CODES, 1.7 with FP16, 3 with BF16. */
#ifndef NK_SM100_GEMV_COSTS_H
#define NK_SM100_GEMV_COSTS_H

#include "cuda/cuda_gemv.h"

static const gemv_costs sm100_gemv_costs = {
    .bytes_per_us = 48600, /* 0.9 of 8 TB/s over 148 SMs */
    .step_us = 0.27,       /* a third of memory's latency */
    .codes_sm_step_us = 0.033,
    .fp16_sm_step_us = 0.029,
    .bf16_sm_step_us = 0.052,
    .token_kb_us = 0.02,
    .solo_us = 0.2,
    .cluster_us = 0.3,
    .cluster_cta_us = 0.05,
    .launch_us = 1.5,
};

#endif
