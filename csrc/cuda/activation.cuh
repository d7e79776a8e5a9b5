/* Activations in fp32, for epilogues and for quantising.
 *
 * There are two silus. `nk_silu` (nk_math.h) is for quantising: the contract fixes its bits, operation by operation,
 * because a code may change with the last bit and every backend must write the same codes. `silu` is for epilogues: the
 * contract bounds its error only, and expf and a reciprocal take fewer instructions than nk_silu. It is not for
 * quantising, because expf has other bits on other processors.
 *
 * The bound of docs/contract.md for epilogues: 2^-24 * 8 |act|, where 1 + erf or 1 + tanh cancel 2^-24 * 4 |h| more,
 * and 2^-126. */
#ifndef NK_ACTIVATION_CUH
#define NK_ACTIVATION_CUH

#include "cuda/ptx/arithmetic.cuh"
#include "nk_math.h"
#include "nk_problem.h"

/* By exp(-|h|), which never overflows: exp(-h) would at h = -89, where silu is still a normal number. The factor
 * 1 / (1 + e) lies in 1/2 .. 1. A division of h e by 1 + e would take the slow path of division, which handles tiny
 * numerators, for every h far below 0. The reciprocal is an ulp off at most. At h = -infinity h e is NaN, as the
 * contract has it. */
__device__ inline float silu(float h)
{
    const float e = expf(-fabsf(h));
    return __fmul_rn(h < 0 ? __fmul_rn(h, e) : h, rcp_approx_ftz(1 + e));
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

/* One switch for all COUNT values: a kernel runs one case, whose instructions lie side by side. */
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
