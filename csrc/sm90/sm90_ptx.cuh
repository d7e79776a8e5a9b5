/* One PTX instruction a function, named after it: what sm_90 has beyond sm_80.
 * https://docs.nvidia.com/cuda/parallel-thread-execution */
#ifndef NK_SM90_PTX_CUH
#define NK_SM90_PTX_CUH

#include "../cuda/mma_ptx.cuh"

/* Until the kernels before this one in its stream have ended and their writes are seen. */
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/* The next kernel's CTAs may come as soon as there is room; they wait before they read. */
__device__ inline void griddepcontrol_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

/* All threads of all CTAs of the cluster have come; what they wrote to shared memory is seen. */
__device__ inline void barrier_cluster()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Where CTA `rank` of the cluster has what this one has at `shared`. */
__device__ inline uint32_t mapa(uint32_t shared, uint32_t rank)
{
    uint32_t at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared), "r"(rank));
    return at;
}

__device__ inline float ld_shared_cluster(uint32_t at)
{
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
    return value;
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

/* 16 bytes, past L1; nothing where !wanted. */
__device__ inline void cp_async_16(uint32_t to, const uint8_t *from, bool wanted)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0;\n\t"
                 "@p cp.async.cg.shared.global.L2::256B [%0], [%1], 16; }" ::"r"(to),
                 "l"(from), "r"((int)wanted)
                 : "memory");
}

/* 4 bytes; zeros where !wanted. */
__device__ inline void cp_async_4_or_zero(uint32_t to, const uint8_t *from, bool wanted)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(wanted ? 4 : 0) : "memory");
}

__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Until at most PENDING of this thread's groups are under way. */
template <int PENDING> __device__ inline void cp_async_wait_group()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ inline uint32_t ld_shared(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}

__device__ inline void st_shared(uint32_t at, uint32_t v)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

__device__ inline void st_shared_v4(uint32_t at, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/* Two E4M3 bytes as halves, exact; 0x7F is NaN. */
__device__ inline uint32_t cvt_f16x2_e4m3x2(uint32_t bytes)
{
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)bytes));
    return halves;
}

#endif
