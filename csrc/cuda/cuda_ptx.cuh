/* What sm_80 has and all later ones, one PTX instruction a function, named after it; and how kernels overlap.
 * https://docs.nvidia.com/cuda/parallel-thread-execution */
#ifndef NK_CUDA_PTX_CUH
#define NK_CUDA_PTX_CUH

#include <stdint.h>

/* The bits of x where the mask has ones, of y elsewhere. Written out, the compiler makes two instructions of it where
 * it knows that some bits are not needed. */
__device__ inline uint32_t lop3_select(uint32_t mask, uint32_t x, uint32_t y)
{
    uint32_t bits;
    asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(bits) : "r"(mask), "r"(x), "r"(y));
    return bits;
}

/* d += a b: a 16x16, b 16x8, d 16x8 in fp32. */
__device__ inline void mma_m16n8k16_f16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Until the kernels before this one in its stream have ended and their writes are seen. Compiled for less than sm_90 a
 * kernel never begins before (see cuda_launch.h). All CTAs wait here: that a kernel has ended is to say that those
 * before it have. */
__device__ inline void griddepcontrol_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel's CTAs may come as soon as there is room; they wait before they read. */
__device__ inline void griddepcontrol_launch_dependents()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#endif
