/* Inclusive scans over the lanes of a warp: what this lane and those before it have. All lanes take part. */
#ifndef NK_SCAN_CUH
#define NK_SCAN_CUH

#include <stdint.h>

template <typename T> __device__ inline T scan_sum(T value)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const T before = __shfl_up_sync(~0u, value, distance);
        if (lane >= distance) value += before;
    }
    return value;
}

__device__ inline int scan_max(int value)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(~0u, value, distance);
        if (lane >= distance) value = max(value, before);
    }
    return value;
}

#endif
