/* Adds the partial sums of logits whose K is split. */
#ifndef NK_ROUTE_SUMS_CUH
#define NK_ROUTE_SUMS_CUH

#include "vectors.cuh"

/* The sum of the partial sums of four logits, in the order of K; SPLITS_AT_ONCE are loaded at once. */
template <int SPLITS_AT_ONCE = 8> __device__ inline float4 sum_splits(const float *from, int64_t stride, int splits)
{
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int split = 0; split < splits; split += SPLITS_AT_ONCE) {
        float4 partials[SPLITS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < SPLITS_AT_ONCE; i++) {
            partials[i] = make_float4(0, 0, 0, 0);
            if (split + i < splits) partials[i] = __ldcg((const float4 *)(from + (split + i) * stride));
        }
#pragma unroll
        for (int i = 0; i < SPLITS_AT_ONCE; i++)
            sum = sum + partials[i];
    }
    return sum;
}

#endif
