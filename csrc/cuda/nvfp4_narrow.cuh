/* NVFP4 weights in a 16-bit type, by the hardware's conversion of codes, from sm_100 on. */
#ifndef NK_NVFP4_NARROW_CUH
#define NK_NVFP4_NARROW_CUH

#include "cuda/ptx/narrow.cuh"
#include "nvfp4.cuh"

/* Eight weights in the order of K, exact. `factor` is the scale factor twice; for bf16 it is multiplied by 2^112, since
 * an fp16 code whose bits are moved to bf16's exponent is the code times 2^-112. */
template <bool BF16> __device__ inline void decode_8_weights(uint32_t codes, uint32_t factor, uint32_t *weights)
{
    uint32_t fp16[4];
    cvt_f16x2_e2m1x2(codes, fp16);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t code = BF16 ? (fp16[i] >> 3 & 0x0FFF0FFF) | (fp16[i] & 0x80008000) : fp16[i];
        weights[i] = multiply_pairs<BF16>(code, factor);
    }
}

#endif
