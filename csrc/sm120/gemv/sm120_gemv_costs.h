/* The cost model of the sm120 gemv family, see gemv_costs, by the facts of sm120_gemm_costs.h: no such GPU was at hand.
 * Of an SM's steps it counts instructions at 2.4 GHz, 1.9 of a lane for an element with CODES, 3 with BF16, or the
 * cycles of its sixteen m16n8k16, 32 each on one of four schedulers. */
#ifndef NK_SM120_GEMV_COSTS_H
#define NK_SM120_GEMV_COSTS_H

#include "cuda/cuda_gemv.h"
#include "sm120/gemm/sm120_gemm_costs.h"

static const gemv_costs sm120_gemv_costs = {
    .bytes_per_us = SM120_GEMM_MEMORY_BYTES_PER_US / SM120_GEMM_SMS,
    .step_us = 0.27, /* a third of memory's latency */
    .codes_sm_step_us = 0.025,
    .fp16_sm_step_us = 0.053,
    .bf16_sm_step_us = 0.053,
    .token_kb_us = 0.02,
    .solo_us = 0.2,
    .launch_us = SM120_GEMM_CTA_CYCLES / SM120_GEMM_CYCLES_PER_US, /* as a tile's, with which it is compared */
};

#endif
