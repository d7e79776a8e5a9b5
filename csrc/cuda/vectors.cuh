/* Vectors of four numbers, which one instruction loads. */
#ifndef NK_VECTORS_CUH
#define NK_VECTORS_CUH

#include <stdint.h>

__device__ inline float4 operator+(const float4 &a, const float4 &b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ inline int4 operator+(const int4 &a, const int4 &b)
{
    return make_int4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ inline float4 operator*(const float4 &a, float b) { return make_float4(a.x * b, a.y * b, a.z * b, a.w * b); }

__device__ inline uint32_t word_of(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* COUNT floats: one, or four side by side in 16 aligned bytes. */
template <int COUNT> __device__ inline void load_floats(const float *at, float v[COUNT])
{
    static_assert(COUNT == 1 || COUNT == 4, "one load");
    if constexpr (COUNT == 4) {
        const float4 four = *(const float4 *)at;
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
        v[0] = *at;
    }
}

#endif
