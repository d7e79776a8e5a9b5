/* quantize by integer and fp32 instructions alone, which every GPU has. The kernels are those of
 * cuda/quantize_token.cuh. */
#include "cuda/quantize_token.cuh"

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

struct by_integers {
    static __device__ uint32_t e4m3_of(float v) { return e4m3_of_float(fminf(v, NK_E4M3_MAX)); }

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
