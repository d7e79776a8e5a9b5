/* Eight results, side by side and aligned, each rounded once. */
#ifndef NK_PEER_STORE_CUH
#define NK_PEER_STORE_CUH

#include "nk_problem.h"
#include "pairs.cuh"

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
