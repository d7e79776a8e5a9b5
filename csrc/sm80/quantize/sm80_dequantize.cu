/* dequantize by moving bits, which every GPU can. The kernels are those of cuda/dequantize.cuh. */
#include "cuda/dequantize.cuh"
#include "cuda/nvfp4.cuh"

struct by_moving_bits {
    template <int ELEMENTS>
    static __device__ void values_of(uint32_t codes, uint32_t sf, float global_scale, float (&v)[ELEMENTS])
    {
        uint32_t pairs[4];
        e2m1x8_to_f16x2(codes, pairs);
        const float scale = e4m3_to_float(sf) * NVFP4_DECODE_SCALE;
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++)
            v[i] = __fmul_rn(__fmul_rn(float_of<false>(pairs[i % 4], i >= 4), scale), global_scale);
    }
};

DEQUANTIZE_KERNELS(sm80, by_moving_bits)
