/* What a plan of the sm80 gemv chooses. gemm runs it, too, for one token. */
#ifndef NK_SM80_GEMV_PLAN_H
#define NK_SM80_GEMV_PLAN_H

#include "sm80/sm80_backend.h"

typedef struct sm80_gemv_choice {
    cuda_kernel *kernel;
    int64_t quads_per_cta;
    int tile, split, chunks, ctas_per_batch; /* split: warps that divide K of a row */
} sm80_gemv_choice;

#endif
