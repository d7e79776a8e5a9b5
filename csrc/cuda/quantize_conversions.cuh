/* How Blackwell's conversion instructions make codes and scale bytes, for the kernels of quantize_token.cuh. */
#ifndef NK_QUANTIZE_CONVERSIONS_CUH
#define NK_QUANTIZE_CONVERSIONS_CUH

#include "cuda/ptx/narrow.cuh"
#include "quantize_token.cuh"

struct quantize_by_conversions {
    static __device__ uint32_t e4m3_of(float v) { return cvt_satfinite_e4m3x2_f32(0, v); }

    /* A scale of 0 meets an infinity only if S is tiny. Their product would be NaN, which loses infinity's sign. Times
     * the smallest float instead, all finite elements still become zeros with their signs. */
    template <nk_dtype DTYPE> static __device__ uint32_t e2m1x8_of(const block<DTYPE> &x, int half, float to_code)
    {
        const float scale = fmaxf(to_code, 0x1p-149f);
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = __fmul_rn(element(x, 8 * half + i), scale);
        return cvt_satfinite_e2m1x2_f32(v);
    }
};

#endif
