/* The activations of dual_gemm in fp32, within docs/contract.md's bound: 2^-24 * 8 |act|, where 1 + erf or 1 + tanh
 * cancel 2^-24 * 4 |h| more, and 2^-126. */
#ifndef NK_SM80_ACTIVATION_CUH
#define NK_SM80_ACTIVATION_CUH

#include "../nk_problem.h"

/* By exp(-|h|), which never overflows: exp(-h) would already at h = -89, where silu is still a normal number. */
__device__ inline float silu(float h)
{
    const float e = expf(-fabsf(h));
    return (h < 0 ? __fmul_rn(h, e) : h) / (1 + e);
}

__device__ inline float gelu(float h)
{
    const float half_square_root = 0.70710678118654752f;
    return __fmul_rn(0.5f * h, 1 + erff(__fmul_rn(h, half_square_root)));
}

__device__ inline float gelu_tanh(float h)
{
    const float square_root_of_2_over_pi = 0.79788456080286536f;
    const float cubic = __fmul_rn(__fmul_rn(__fmul_rn(0.044715f, h), h), h);
    return __fmul_rn(0.5f * h, 1 + tanhf(__fmul_rn(square_root_of_2_over_pi, h + cubic)));
}

__device__ inline float activate(nk_activation activation, float h)
{
    switch (activation) {
    case NK_SILU:
        return silu(h);
    case NK_GELU:
        return gelu(h);
    case NK_GELU_TANH:
        return gelu_tanh(h);
    case NK_RELU:
        return h < 0 ? 0.0f : h; /* keeps NaN */
    default:
        return h;
    }
}

#endif
