/* The gemv of Blackwell's rows (cuda/cuda_gemv.h) beside the tiles of gemm: members of a gemm_row. */
#ifndef NK_GEMM_GEMV_H
#define NK_GEMM_GEMV_H

#include "cuda/cuda_gemv.h"
#include "gemm_family.h"

/* As gemm_row.plan_gemv. `tiles`: the family beside it, which a forced tile may be of. */
nk_status gemm_plan_few_tokens(const cuda_gemv_row *gemv, const gemm_family *tiles, const gemm_desc *d,
                               const nk_settings *settings, nk_plan *plan, void *choice, double *us);
nk_status gemm_run_few_tokens(const gemm_desc *d, const void *choice, const nk_exec *exec);

#endif
