/* Encoding: the contract's fp32 operations in the contract's order, so that every kernel writes the same bytes. */
#ifndef NK_ENCODE_CUH
#define NK_ENCODE_CUH

#include "epilogue.cuh"

#include <float.h>

#define INFINITY_BITS 0x7F800000u

typedef struct encoder {
    bool valid;      /* S > 0 */
    float to_sf;     /* fl(S * fl(1/6)) */
    float inverse_s; /* fl(1/S) */
} encoder;

__device__ inline encoder encoder_of(float s) { return {s > 0, __fmul_rn(s, 1.0f / NK_E2M1_MAX), __frcp_rn(s)}; }

/* S for a global scale that is given. */
__device__ inline float encode_scale_of(const nk_alpha &global_scale)
{
    const float given = alpha_at(global_scale, 0), s = global_scale.inverse ? given : __frcp_rn(given);
    return s > FLT_MAX ? FLT_MAX : s; /* keeps NaN */
}

/* value in [0, 448] */
__device__ inline uint32_t e4m3_of_float(float value)
{
    /* Below the smallest normal, 2^-6, the step is 2^-9: one unit in the last place of 2^14. */
    const uint32_t bits = __float_as_uint(value);
    const uint32_t subnormal = __float_as_uint(__fadd_rn(value, 0x1p14f)) - __float_as_uint(0x1p14f);
    const uint32_t normal = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
    return value < 0x1p-6f ? subnormal : normal;
}

/* The code of |value| in the lowest byte; the bytes above it mean nothing. With v = |value| and the power of two
 * e = max(1, 2^floor(lg v)), codes are e/2 apart at v. Adding e (2^22 + 1) rounds v to a multiple of e/2 and leaves
 * v / (e/2) + 2 in the last bits. The code is that - 2 + 2 lg e, and 2 (lg e + 127) is the bits of e >> 22. Values
 * saturate at 6. NaN gives 6 as well: it is an infinity times a scale of 0. */
__device__ inline uint32_t e2m1_magnitude(float value)
{
    const float v = fminf(fabsf(value), NK_E2M1_MAX);
    const uint32_t e = __float_as_uint(fmaxf(v, 1.0f)) & INFINITY_BITS;
    return __float_as_uint(__fmaf_rn(__uint_as_float(e), 0x1p22f + 1, v)) + (e >> 22);
}

/* `amax`: the bits of a block's largest magnitude, above INFINITY_BITS if an element is NaN. */
__device__ inline bool is_poisoned(const encoder &e, uint32_t amax) { return !e.valid || amax > INFINITY_BITS; }

/* The scale factor of a block that is not poisoned. */
__device__ inline uint32_t sf_of_number(const encoder &e, uint32_t amax)
{
    return e4m3_of_float(fminf(__fmul_rn(__uint_as_float(amax), e.to_sf), NK_E4M3_MAX));
}

/* The scale factor of any block. It never falls when amax rises: the largest of two halves of a block is the block's.
 */
__device__ inline uint32_t sf_of_amax(const encoder &e, uint32_t amax)
{
    return is_poisoned(e, amax) ? NK_E4M3_NAN : sf_of_number(e, amax);
}

/* If not, all codes of the block are 0. */
__device__ inline bool has_codes(uint32_t sf) { return sf != 0 && sf != NK_E4M3_NAN; }

/* What the elements of a block with codes are multiplied by. */
__device__ inline float code_factor(const encoder &e, uint32_t sf)
{
    const float scale = __uint_as_float(sf << 20) * 0x1p120f; /* at most 448, never NaN */
    return fminf(__frcp_rn(__fmul_rn(scale, e.inverse_s)), FLT_MAX);
}

__device__ inline uint32_t code_of(float value, float factor)
{
    return (e2m1_magnitude(__fmul_rn(value, factor)) & 0xF) | (__float_as_uint(value) >> 28 & 8);
}

/* The largest of four neighbouring lanes. */
__device__ inline uint32_t quad_max(uint32_t value)
{
    value = max(value, __shfl_xor_sync(~0u, value, 1));
    return max(value, __shfl_xor_sync(~0u, value, 2));
}

/* What is encoded of a gate and an up: fl(nk_silu(h) * u). */
__device__ inline float gated_value(float h, float u) { return __fmul_rn(nk_silu(h), u); }

/* What is encoded of COUNT gates and ups, in place of the gates: as activate(), with nk_silu for silu. */
template <int COUNT>
__device__ inline void activate_to_encode(const nk_activation &activation, float h[COUNT], float u[COUNT])
{
    const float limit = activation.limit;
    if (activation.kind != NK_SILU) return activate<COUNT>(activation, h, u);
    if (limit < INFINITY) {
        each<COUNT>(h, [=](float gate) { return gate > limit ? limit : gate; });
        each<COUNT>(u, [=](float up) { return up > limit ? limit : up < -limit ? -limit : up; });
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        h[i] = gated_value(h[i], u[i]);
}

#endif
