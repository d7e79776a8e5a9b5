/* How Blackwell's conversion instructions decode, for the kernels of dequantize.cuh. */
#ifndef NK_DEQUANTIZE_CONVERSIONS_CUH
#define NK_DEQUANTIZE_CONVERSIONS_CUH

#include "dequantize.cuh"
#include "cuda/ptx/narrow.cuh"
#include "cuda/ptx/registers.cuh"

struct dequantize_by_conversions {
    /* A code times its scale factor, which has no sign, is exact in fp16: six significant bits, from 2^-10 to 2688. */
    template <int ELEMENTS>
    static __device__ void values_of(uint32_t codes, uint32_t sf, float global_scale, float (&v)[ELEMENTS])
    {
        const uint32_t scale = cvt_f16x2_e4m3x2((sf & 0x7F) * 0x0101);
        uint32_t pairs[4];
        cvt_f16x2_e2m1x2(codes, pairs);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++)
            v[i] = __fmul_rn(float_of<false>(multiply_pairs<false>(pairs[i / 2], scale), i % 2), global_scale);
    }
};

#endif
