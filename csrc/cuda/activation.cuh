/* Activations in fp32, for epilogues and for quantising.
 *
 * There are two silus. `nk_silu` (nk_math.h) is for quantising: the contract fixes its bits, operation by operation,
 * because a code may change with the last bit and every backend must write the same codes. `silu` is for epilogues: the
 * contract bounds its error only, and expf and a reciprocal take fewer instructions than nk_silu. It is not for
 * quantising, because expf has other bits on other processors.
 *
 * The bound of docs/contract.md for epilogues: 2^-24 * 8 |act|, where 1 + erf or 1 + tanh cancel 2^-24 * 4 |h| more,
 * where scale * h is rounded 2^-24 |scale h act|, and 2^-126. */
#ifndef NK_ACTIVATION_CUH
#define NK_ACTIVATION_CUH

#include "cuda/ptx/arithmetic.cuh"
#include "nk_math.h"
#include "nk_problem.h"

/* h sigmoid(t), where t has the sign of h. By exp(-|t|), which never overflows: exp(-t) would at t = -89, where the
 * result is still a normal number. The factor 1 / (1 + e) lies in 1/2 .. 1. A division of h e by 1 + e would take the
 * slow path of division, which handles tiny numerators, for every h far below 0. The reciprocal is an ulp off at most.
 * At h = -infinity h e is NaN, as the contract has it. */
__device__ inline float swish(float h, float t)
{
    const float e = expf(-fabsf(t));
    return __fmul_rn(h < 0 ? __fmul_rn(h, e) : h, rcp_approx_ftz(1 + e));
}

__device__ inline float silu(float h) { return swish(h, h); }
__device__ inline float relu(float h) { return h < 0 ? 0.0f : h; } /* keeps NaN */

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

/* Activates COUNT sums, or with GATED as many gates and their ups. One switch for all: a kernel runs one case, whose
 * instructions lie side by side. */
template <int COUNT, bool GATED>
__device__ inline void switch_activation(nk_activation_kind kind, float scale, float h[COUNT], float *u)
{
    switch (kind) {
    case NK_SILU:
        each<COUNT>(h, silu);
        break;
    case NK_GELU:
        each<COUNT>(h, gelu);
        break;
    case NK_GELU_TANH:
        each<COUNT>(h, gelu_tanh);
        break;
    case NK_RELU:
        each<COUNT>(h, relu);
        break;
    case NK_RELU2:
        each<COUNT>(h, [](float gate) { return __fmul_rn(relu(gate), relu(gate)); });
        break;
    case NK_SWIGLU_OAI:
        if constexpr (GATED) {
            each<COUNT>(h, [=](float gate) { return swish(gate, __fmul_rn(scale, gate)); });
            each<COUNT>(u, [](float up) { return __fadd_rn(up, 1.0f); });
        }
        break;
    case NK_IDENTITY:
        break;
    }
}

/* COUNT sums of grouped_gemm. */
template <int COUNT> __device__ inline void activate_alone(nk_activation_kind kind, float h[COUNT])
{
    switch_activation<COUNT, false>(kind, 0, h, nullptr);
}

/* h * u of COUNT gates and ups, once each is activated. Comparisons keep NaN. */
template <int COUNT> __device__ inline void activate(const nk_activation &activation, float h[COUNT], float u[COUNT])
{
    const float limit = activation.limit, scale = activation.scale;
    if (limit < INFINITY) {
        each<COUNT>(h, [=](float gate) { return gate > limit ? limit : gate; });
        each<COUNT>(u, [=](float up) { return up > limit ? limit : up < -limit ? -limit : up; });
    }
    switch_activation<COUNT, true>(activation.kind, scale, h, u);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        h[i] = __fmul_rn(h[i], u[i]);
}

/* A GEMM's configuration C, for a kernel that activates its sums. */
template <class C> struct activated : C {
    static constexpr bool ACTIVATED = true;
};

#endif
