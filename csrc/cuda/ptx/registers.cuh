/* Instructions between registers, and values that must stay in registers.
 *
 * Here as in all of cuda/ptx/: a function is one PTX instruction and is named after it; suffixes and arguments say what
 * the instruction says (_if: nothing happens unless `wanted`, without a branch; _hint: L2 takes it by a policy).
 * Addresses of shared memory are 32 bits, see shared.cuh. https://docs.nvidia.com/cuda/parallel-thread-execution */
#ifndef NK_REGISTERS_CUH
#define NK_REGISTERS_CUH

#include <stdint.h>

/* The bits of x where the mask has ones, of y elsewhere. Written out, the compiler makes two instructions of it where
 * it knows that some bits are not needed. */
__device__ inline uint32_t lop3_select(uint32_t mask, uint32_t x, uint32_t y)
{
    uint32_t bits;
    asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(bits) : "r"(mask), "r"(x), "r"(y));
    return bits;
}

/* Two E4M3 bytes as fp16, exact; 0x7F is NaN. From sm_89 on. */
__device__ inline uint32_t cvt_f16x2_e4m3x2(uint32_t bytes)
{
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)bytes));
    return halves;
}

/* True in one lane of the warp, the same one each time. */
__device__ inline bool elect_sync()
{
    uint32_t elected;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
    return elected;
}

/* The registers of a warpgroup's threads from here on. */
template <int REGISTERS> __device__ inline void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ inline void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* The 8x8 matrix of 16-bit elements that the warp holds, two of row lane / 4 a lane, transposed. */
__device__ inline uint32_t movmatrix_trans(uint32_t pair)
{
    uint32_t transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
    return transposed;
}

/* A value that is to stay in a register: the compiler would work it out again in every step. */
__device__ inline uint32_t kept(uint32_t value)
{
    asm volatile("" : "+r"(value));
    return value;
}

__device__ inline const uint8_t *kept(const uint8_t *address)
{
    asm volatile("" : "+l"(address));
    return address;
}

/* The same, known to be in global memory, which the compiler forgets of what went through asm. */
__device__ inline const uint8_t *kept_global(const uint8_t *address)
{
    return (const uint8_t *)__cvta_global_to_generic((size_t)kept((const uint8_t *)__cvta_generic_to_global(address)));
}

#endif
