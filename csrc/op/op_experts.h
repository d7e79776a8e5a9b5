/* Checks of GEMMs whose rows `offsets` divides among experts. */
#ifndef NK_OP_EXPERTS_H
#define NK_OP_EXPERTS_H

#include "op_gemm.h"

/* Checks a, b [G, N, K] and their scales, `offsets`, `rows` and expected_rows, and fills all of *problem but alpha,
 * bias and output. `b_shape` is what messages expect of b, as in "[G, N, K/2]". *like becomes the view of a. */
nk_status nk_check_experts(const nk_grouped_gemm_args *args, unsigned b_dtypes, const char *b_shape,
                           nk_grouped_gemm_problem *problem, nk_view *like);

/* The result that the inputs ask for: specs[0], or where encoding is wanted specs[0] of codes and specs[1] of scale
 * factors, and problem->encoded without its outputs. `b_shape` and `like` are those of nk_check_experts; of gates
 * problem->all.n is already theirs. */
nk_status nk_spec_of_experts(const nk_grouped_gemm_args *args, const char *b_shape, const nk_view *like,
                             nk_grouped_gemm_problem *problem, nk_tensor specs[2]);

/* The outputs, of which `specs` speak: they share no byte with each other, nor with what else *args names. */
nk_status nk_check_experts_outputs(const nk_grouped_gemm_args *args, const nk_tensor specs[2], const nk_exec *exec,
                                   nk_grouped_gemm_problem *problem);

/* Whether nothing can be written: there is no expert, or no token that a number of `rows` could be clamped to. */
bool nk_are_experts_idle(const nk_grouped_gemm_problem *problem);

/* A 16-bit b may be contiguous along N instead of K, since torch's grouped_mm takes it so. */
nk_status nk_check_16_bit_strides(const nk_tensor *b, const nk_operand *operand);

#endif
