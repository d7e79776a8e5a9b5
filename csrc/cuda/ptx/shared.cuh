/* Shared memory of the CTA, by its 32-bit addresses. */
#ifndef NK_SHARED_CUH
#define NK_SHARED_CUH

#include <stdint.h>

__device__ inline uint32_t shared_address(const void *at) { return (uint32_t)__cvta_generic_to_shared(at); }

__device__ inline uint32_t ld_shared(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}

__device__ inline uint32_t ld_shared_u16(uint32_t at)
{
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
    return v;
}

__device__ inline uint2 ld_shared_v2(uint32_t at)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}

__device__ inline uint4 ld_shared_v4(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

__device__ inline void st_shared(uint32_t at, uint32_t v)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

__device__ inline void st_shared_if(bool wanted, uint32_t at, uint32_t v)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0;\n\t@p st.shared.u32 [%0], %1; }" ::"r"(at), "r"(v),
                 "r"((int)wanted)
                 : "memory");
}

__device__ inline void st_shared_v4(uint32_t at, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/* Four 8x8 matrices of 16-bit elements; lane i points to row i % 8 of matrix i / 8, 16 bytes. */
__device__ inline void ldmatrix_x4(uint32_t d[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(from)
                 : "memory");
}

__device__ inline void stmatrix_x4(uint32_t to, const uint32_t v[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3])
                 : "memory");
}

#endif
