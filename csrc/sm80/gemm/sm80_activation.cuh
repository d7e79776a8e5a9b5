/* The activations of dual_gemm in fp32, within docs/contract.md's bound: 2^-24 * 8 |act|, where 1 + erf or 1 + tanh
 * cancel 2^-24 * 4 |h| more, and 2^-126. */
#ifndef NK_SM80_ACTIVATION_CUH
#define NK_SM80_ACTIVATION_CUH

#include "nk_problem.h"

/* By exp(-|h|), which never overflows: exp(-h) would already at h = -89, where silu is still a normal number. Times
 * 1 / (1 + e), which lies in 1/2 .. 1: a quotient whose numerator is tiny or zero takes the long way, and exp(h) h is
 * that for every h far below 0. */
__device__ inline float silu(float h)
{
    const float e = expf(-fabsf(h));
    return __fmul_rn(h < 0 ? __fmul_rn(h, e) : h, 1 / (1 + e));
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

template <int COUNT, typename F> __device__ inline void each(float h[COUNT], F f)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        h[i] = f(h[i]);
}

/* The switch is around all values, so that what runs lies side by side. */
template <int COUNT> __device__ inline void activate(nk_activation activation, float h[COUNT])
{
    switch (activation) {
    case NK_SILU:
        return each<COUNT>(h, silu);
    case NK_GELU:
        return each<COUNT>(h, gelu);
    case NK_GELU_TANH:
        return each<COUNT>(h, gelu_tanh);
    case NK_RELU:
        return each<COUNT>(h, [](float value) { return value < 0 ? 0.0f : value; }); /* keeps NaN */
    default:
        return; /* the value itself */
    }
}

#endif
