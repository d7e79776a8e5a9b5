/* What gemm shares with the operators made of it. */
#ifndef NK_OP_GEMM_H
#define NK_OP_GEMM_H

#include "op_check.h"

/* All of a 2-D or batched gemm but alpha, bias and its output; `first` is the tensor whose device counts. *like gets
 * the batch of a. */
nk_status nk_gemm_inputs(const nk_gemm_args *args, unsigned a_dtypes, unsigned b_dtypes, const nk_tensor *first,
                         nk_gemm_problem *problem, nk_view *like);

/* The output, and that it shares no memory with any input. */
nk_status nk_gemm_output(const nk_gemm_args *args, const nk_tensor *spec, const nk_exec *exec, const nk_tensor *first,
                         nk_gemm_problem *problem);

#endif
