/* quantize by integer and fp32 instructions alone, which every GPU has. The kernels are those of cuda/quantize.cuh. */
#include "cuda/quantize.cuh"

__device__ inline uint32_t low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

/* The signs of elements 8 half .. 8 half + 7, at the bits where their codes have them. */
template <nk_dtype DTYPE> __device__ inline uint32_t code_signs(const block<DTYPE> &x, int half)
{
    uint32_t even, odd; /* the elements' highest bytes */
    if (DTYPE == NK_F32) {
        const uint32_t *w = x.words + half * (x.WORDS / 2);
        even = __byte_perm(__byte_perm(w[0], w[2], 0x0073), __byte_perm(w[4], w[6], 0x0073), 0x5410);
        odd = __byte_perm(__byte_perm(w[1], w[3], 0x0073), __byte_perm(w[5], w[7], 0x0073), 0x5410);
    } else {
        const uint32_t *w = x.words + half * (x.WORDS / 2);
        const uint32_t low = __byte_perm(w[0], w[1], 0x7351), high = __byte_perm(w[2], w[3], 0x7351);
        even = __byte_perm(low, high, 0x5410);
        odd = __byte_perm(low, high, 0x7632);
    }
    return (even >> 4 & 0x08080808) | (odd & 0x80808080);
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

struct by_integers {
    static __device__ uint32_t e4m3_of(float v)
    {
        /* Below the smallest normal, 2^-6, the step is 2^-9: one unit in the last place of 2^14. */
        const float value = fminf(v, NK_E4M3_MAX);
        const uint32_t bits = __float_as_uint(value);
        const uint32_t subnormal = __float_as_uint(__fadd_rn(value, 0x1p14f)) - __float_as_uint(0x1p14f);
        const uint32_t normal = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
        return value < 0x1p-6f ? subnormal : normal;
    }

    template <nk_dtype DTYPE> static __device__ uint32_t e2m1x8_of(const block<DTYPE> &x, int half, float to_code)
    {
        uint32_t m[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            m[i] = e2m1_magnitude(__fmul_rn(element(x, 8 * half + i), to_code));
        return low_bytes(m[0], m[2], m[4], m[6]) + (low_bytes(m[1], m[3], m[5], m[7]) << 4) + code_signs(x, half);
    }
};

QUANTIZE_KERNELS(sm80, by_integers)
