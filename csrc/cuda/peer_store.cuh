/* How a CTA copies bytes, and stores results. */
#ifndef NK_PEER_STORE_CUH
#define NK_PEER_STORE_CUH

#include "nk_problem.h"
#include "peer_config.h"
#include "pairs.cuh"

/* What the threads of a CTA load at once: the first bytes of begin .. end - 1, which are aligned to 16. */
typedef struct peer_bytes {
    static constexpr int AT_ONCE = PEER_COPY_BYTES / 16;
    uint4 v[AT_ONCE];

    __device__ void load(const uint8_t *from, int64_t begin, int64_t end)
    {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (place(begin, i) < end) v[i] = *(const uint4 *)(from + place(begin, i));
    }

    __device__ void store(uint8_t *to, int64_t begin, int64_t end) const
    {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (place(begin, i) < end) *(uint4 *)(to + place(begin, i)) = v[i];
    }

    __device__ static int64_t place(int64_t begin, int i) { return begin + 16 * (i * blockDim.x + threadIdx.x); }
    __device__ static int64_t all() { return PEER_COPY_BYTES * blockDim.x; }
} peer_bytes;

__device__ inline void copy_bytes(uint8_t *to, const uint8_t *from, int64_t begin, int64_t end)
{
#pragma unroll 1
    for (; begin < end; begin += peer_bytes::all()) {
        peer_bytes some;
        some.load(from, begin, end);
        some.store(to, begin, end);
    }
}

/* Eight results, side by side and aligned, each rounded once. */
__device__ inline void store_eight(uint8_t *at, nk_dtype dtype, const float v[8])
{
    if (dtype == NK_F32) {
        ((float4 *)at)[0] = make_float4(v[0], v[1], v[2], v[3]);
        ((float4 *)at)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
        *(uint4 *)at = dtype == NK_F16 ? pack_eight<false>(v) : pack_eight<true>(v);
    }
}

#endif
