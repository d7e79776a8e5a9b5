/* Other CTAs of a cluster: their numbers, their shared memory. */
#ifndef NK_CLUSTER_CUH
#define NK_CLUSTER_CUH

#include <stdint.h>

__device__ inline uint32_t cluster_ctarank()
{
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Where CTA `rank` of the cluster has what this one has at `shared`. */
__device__ inline uint32_t mapa(uint32_t shared, uint32_t rank)
{
    uint32_t at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared), "r"(rank));
    return at;
}

/* To a CTA of the cluster, whose mbarrier counts the bytes. */
__device__ inline void st_async(uint32_t to, float value, uint32_t mbarrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
                 "r"(__float_as_uint(value)), "r"(mbarrier)
                 : "memory");
}

/* ptxas 13.0 makes an illegal instruction of a constant value. */
__device__ inline void st_async_if(bool wanted, uint32_t to, float value, uint32_t mbarrier)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0;\n\t"
                 "@p st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2]; }" ::"r"(to),
                 "r"(__float_as_uint(value)), "r"(mbarrier), "r"((int)wanted)
                 : "memory");
}

__device__ inline void st_async_v4(uint32_t to, const float v[4], uint32_t mbarrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
                 "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(mbarrier)
                 : "memory");
}

#endif
