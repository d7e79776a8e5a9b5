/* What threads do with the shared memory of other CTAs of a cluster; addresses are mapa's, see cluster.cuh. */
#ifndef NK_CLUSTER_MEMORY_CUH
#define NK_CLUSTER_MEMORY_CUH

#include <stdint.h>

/* What a CTA of the cluster had there at the last barrier of the cluster. */
__device__ inline float4 ld_shared_cluster_v4(uint32_t at)
{
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

#endif
