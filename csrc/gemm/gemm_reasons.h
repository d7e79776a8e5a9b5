/* Says once why a family, or one of its tile configurations, cannot serve a call. */
#ifndef NK_GEMM_REASONS_H
#define NK_GEMM_REASONS_H

#define GEMM_K_IS_0 "K is 0"
#define GEMM_TOO_LARGE "an extent, or the number of tiles, is more than 2^30"
#define GEMM_NO_MAP(operands) "no tensor map describes the " operands ": an address or a stride is not aligned"
#define GEMM_NOT_NVFP4(operand) "the " operand " are not NVFP4"
#define GEMM_NO_KERNEL "the operator has no kernel of it"
#define GEMM_NO_ACTIVATED_LISTS "it has no kernels of lists with an activation: models' experts are one stack"
#define GEMM_NO_CODES "the operator has no kernel of it that writes codes"
#define GEMM_NO_SMEM "its CTAs do not fit into shared memory"
#define GEMM_SEVERAL_TYPES "a launch has NVFP4 tokens or 16-bit ones, and the list has both"
#define GEMM_NOTHING "no group has anything to multiply"

#define GEMM_LARGEST (1 << 30) /* extent, or number of tiles: tensor maps and kernels count in 32 bits */

#endif
