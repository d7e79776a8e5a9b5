/* Global memory: accesses that CUDA C has no type for, and those whose memory order it has no words for. */
#ifndef NK_GLOBAL_CUH
#define NK_GLOBAL_CUH

#include <stdint.h>

/* Adds, and returns what was there. A thread that reads the sum with acquire sees what this thread did and saw before.
 * This thread sees what the additions before it released. */
__device__ inline uint64_t atom_add_acq_rel_gpu(uint64_t *at, uint64_t more)
{
    uint64_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(__cvta_generic_to_global(at)), "l"(more)
                 : "memory");
    return before;
}

__device__ inline uint64_t ld_acquire_gpu(const uint64_t *at)
{
    uint64_t v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(__cvta_generic_to_global(at)) : "memory");
    return v;
}

/* 32 aligned bytes at once, from sm_100 on. */
__device__ inline void st_global_v8(void *at, const uint32_t v[8])
{
    asm volatile("st.global.v8.b32 [%0], {%1,%2,%3,%4,%5,%6,%7,%8};" ::"l"(__cvta_generic_to_global(at)), "r"(v[0]),
                 "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(v[7])
                 : "memory");
}

/* The same. */
__device__ inline void ld_global_v8(const void *at, uint32_t v[8])
{
    asm volatile("ld.global.v8.b32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7])
                 : "l"(__cvta_generic_to_global(at)));
}

/* 32 aligned bytes at once that are read once: past L1, and the first that L2 gives up. From sm_100 on. */
__device__ inline void ld_global_v8_evict_first(const void *at, uint32_t v[8])
{
    asm volatile("ld.global.L1::no_allocate.L2::evict_first.v8.b32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7])
                 : "l"(__cvta_generic_to_global(at)));
}

#endif
