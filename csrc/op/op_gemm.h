/* Checks of gemm that gemv and grouped_gemm use, too. */
#ifndef NK_OP_GEMM_H
#define NK_OP_GEMM_H

#include "op_check.h"

/* Checks a, b, their scales and row_scale, and fills all of *problem but alpha, bias and output. `first` is the tensor
 * whose device the others must have. *like becomes the view of a. */
nk_status nk_gemm_inputs(const nk_gemm_args *args, unsigned a_dtypes, unsigned b_dtypes, const nk_tensor *first,
                         nk_gemm_problem *problem, nk_view *like);

/* Checks the output: it has no byte in common with an input. */
nk_status nk_gemm_output(const nk_gemm_args *args, const nk_tensor *spec, const nk_exec *exec, const nk_tensor *first,
                         nk_gemm_problem *problem);

nk_status nk_check_activation(const nk_activation *activation);

/* Whether every batch has the same weights. */
bool nk_is_shared(const nk_operand *weights);

/* For shared weights: where the rows of all batches are evenly spaced, in `a`, its scales, `d` and `row_scale`, they
 * become the rows of one matrix, so that the weights are read once. */
void nk_join_batches(int64_t *l, int64_t *m, int64_t n, int64_t k, nk_operand *a, nk_output *d,
                     nk_row_scale *row_scale);

#endif
