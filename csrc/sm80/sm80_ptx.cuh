/* One PTX instruction a function, named after it. https://docs.nvidia.com/cuda/parallel-thread-execution */
#ifndef NK_SM80_PTX_CUH
#define NK_SM80_PTX_CUH

#include "cuda/cuda_ptx.cuh"

__device__ inline uint32_t shared_address(const void *at) { return (uint32_t)__cvta_generic_to_shared(at); }

/* BYTES = 4, 8 or 16; both addresses aligned to that. */
template <int BYTES> __device__ inline void cp_async(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}

/* 16 bytes past L1: for what is read once. */
__device__ inline void cp_async_cg(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ inline void cp_async_cg_zfill(uint32_t to, const void *from, int valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}

__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Until at most PENDING of this thread's groups are under way. */
template <int PENDING> __device__ inline void cp_async_wait_group()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Four 8x8 matrices of 16-bit elements; lane i points to row i % 8 of matrix i / 8, 16 bytes. */
__device__ inline void ldmatrix_x4(uint32_t d[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(from)
                 : "memory");
}

#endif
