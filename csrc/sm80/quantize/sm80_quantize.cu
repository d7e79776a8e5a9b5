/* quantize by integer and fp32 instructions alone, which every GPU has. The kernels are those of
 * cuda/quantize_token.cuh. */
#include "cuda/quantize_token.cuh"

struct by_integers {
    static __device__ uint32_t e4m3_of(float v) { return e4m3_of_float(fminf(v, NK_E4M3_MAX)); }

    template <nk_dtype DTYPE> static __device__ uint32_t e2m1x8_of(const block<DTYPE> &x, int half, float to_code)
    {
        uint32_t m[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            m[i] = e2m1_magnitude(__fmul_rn(element(x, 8 * half + i), to_code));
        return codes_of_bytes(m) + code_signs(x, half);
    }
};

QUANTIZE_KERNELS(sm80, by_integers)
