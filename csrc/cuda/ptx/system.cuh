/* Memory that several GPUs and the host share: accesses whose order they all see, and the time by which waits end. */
#ifndef NK_SYSTEM_CUH
#define NK_SYSTEM_CUH

#include <stdint.h>

/* What this thread did and has seen, in any memory, comes before what it does next, for all of the system. */
__device__ inline void fence_acq_rel_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ inline void st_relaxed_sys(uint32_t *at, uint32_t v)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "r"(v) : "memory");
}

__device__ inline uint32_t ld_acquire_sys(const uint32_t *at)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(at)) : "memory");
    return v;
}

/* 16 aligned bytes that another GPU writes, or reads, meanwhile. */
__device__ inline uint4 ld_volatile_v4(const uint4 *at)
{
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(at))
                 : "memory");
    return v;
}

__device__ inline void st_volatile_v4(uint4 *at, const uint4 &v)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(at)), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* Nanoseconds. */
__device__ inline uint64_t mov_globaltimer()
{
    uint64_t v;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
    return v;
}

#endif
