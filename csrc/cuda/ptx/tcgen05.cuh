/* Tensor memory, and MMAs that accumulate there (sm_100f). CTA_GROUP: 1, or 2 if a pair of CTAs does it together. */
#ifndef NK_TCGEN05_CUH
#define NK_TCGEN05_CUH

#include <stdint.h>

/* Puts the address at `to` in shared memory. With a group of two, both CTAs' warps. */
template <int CTA_GROUP> __device__ inline void tcgen05_alloc(uint32_t to, uint32_t columns)
{
    asm volatile("tcgen05.alloc.cta_group::%0.sync.aligned.shared::cta.b32 [%1], %2;" ::"n"(CTA_GROUP), "r"(to),
                 "r"(columns)
                 : "memory");
}

template <int CTA_GROUP> __device__ inline void tcgen05_relinquish_alloc_permit()
{
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::%0.sync.aligned;" ::"n"(CTA_GROUP));
}

template <int CTA_GROUP> __device__ inline void tcgen05_dealloc(uint32_t tmem, uint32_t columns)
{
    asm volatile("tcgen05.dealloc.cta_group::%0.sync.aligned.b32 %1, %2;" ::"n"(CTA_GROUP), "r"(tmem), "r"(columns));
}

/* Beside barriers: what tcgen05 does before them is ordered before what it does behind them in another thread. */
__device__ inline void tcgen05_fence_before_thread_sync()
{
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

__device__ inline void tcgen05_fence_after_thread_sync()
{
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

enum { TCGEN05_NO_SWIZZLE = 0, TCGEN05_SWIZZLE_128B = 2 };

/* Of a K-major matrix in shared memory; `stride`: bytes from eight rows to the next eight. */
__device__ inline uint64_t tcgen05_descriptor(uint32_t at, int stride, int swizzle)
{
    return (uint64_t)(at >> 4 & 0x3FFF) | (uint64_t)(stride >> 4) << 32 | 1ull << 46 | (uint64_t)swizzle << 61;
}

/* Of what lies so many bytes behind: addresses of shared memory have 18 bits, so nothing is carried into other fields.
 * The addition is PTX, of which ptxas makes one instruction; nvcc would take the descriptor's two words apart. */
__device__ inline uint64_t tcgen05_descriptor_behind(uint64_t descriptor, int bytes)
{
    uint64_t behind;
    asm("add.s64 %0, %1, %2;" : "=l"(behind) : "l"(descriptor), "l"((int64_t)(bytes >> 4)));
    return behind;
}

/* 32 rows of 16 bytes, into all four quarters of the lanes; of each CTA of the group, out of its own shared memory. */
template <int CTA_GROUP> __device__ inline void tcgen05_cp_32x128b_warpx4(uint32_t tmem, uint64_t matrix)
{
    asm volatile("tcgen05.cp.cta_group::%0.32x128b.warpx4 [%1], %2;" ::"n"(CTA_GROUP), "r"(tmem), "l"(matrix)
                 : "memory");
}

/* D = A B (+ D), with a scale factor for every 16 along K. block16 is scale_vec::4X, which only sm_100a knows by that
 * name. */
template <int CTA_GROUP>
__device__ inline void tcgen05_mma_mxf4nvf4(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, uint32_t sfa,
                                            uint32_t sfb, bool accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %7, 0;\n\t"
                 "tcgen05.mma.cta_group::%0.kind::mxf4nvf4.block_scale.block16"
                 " [%1], %2, %3, %4, [%5], [%6], p; }" ::"n"(CTA_GROUP),
                 "r"(d), "l"(a), "l"(b), "r"(instruction), "r"(sfa), "r"(sfb), "r"((int)accumulate)
                 : "memory");
}

/* D = A B (+ D) of 16-bit floats, 16 along K. */
template <int CTA_GROUP>
__device__ inline void tcgen05_mma_f16(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, bool accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0;\n\t"
                 "tcgen05.mma.cta_group::%0.kind::f16 [%1], %2, %3, %4, p; }" ::"n"(CTA_GROUP),
                 "r"(d), "l"(a), "l"(b), "r"(instruction), "r"((int)accumulate)
                 : "memory");
}

/* The same; A is in tensor memory, a row in each lane, two elements along K in a column. */
template <int CTA_GROUP>
__device__ inline void tcgen05_mma_f16(uint32_t d, uint32_t a, uint64_t b, uint32_t instruction, bool accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0;\n\t"
                 "tcgen05.mma.cta_group::%0.kind::f16 [%1], [%2], %3, %4, p; }" ::"n"(CTA_GROUP),
                 "r"(d), "r"(a), "l"(b), "r"(instruction), "r"((int)accumulate)
                 : "memory");
}

/* Arrives at the CTA's mbarrier when all that this thread issued before has been done. */
template <int CTA_GROUP> __device__ inline void tcgen05_commit(uint32_t mbarrier)
{
    asm volatile("tcgen05.commit.cta_group::%0.mbarrier::arrive::one.shared::cluster.b64 [%1];" ::"n"(CTA_GROUP),
                 "r"(mbarrier)
                 : "memory");
}

/* The same at that of every CTA in the mask. */
template <int CTA_GROUP> __device__ inline void tcgen05_commit_multicast(uint32_t mbarrier, uint16_t mask)
{
    asm volatile("tcgen05.commit.cta_group::%0.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
                 " [%1], %2;" ::"n"(CTA_GROUP),
                 "r"(mbarrier), "h"(mask)
                 : "memory");
}

/* 32 columns of the warp's 32 lanes: a row a thread. */
__device__ inline void tcgen05_ld_32x32b_x32(uint32_t tmem, uint32_t (&v)[32])
{
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32"
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, [%32];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]),
                   "=r"(v[8]), "=r"(v[9]), "=r"(v[10]), "=r"(v[11]), "=r"(v[12]), "=r"(v[13]), "=r"(v[14]), "=r"(v[15]),
                   "=r"(v[16]), "=r"(v[17]), "=r"(v[18]), "=r"(v[19]), "=r"(v[20]), "=r"(v[21]), "=r"(v[22]),
                   "=r"(v[23]), "=r"(v[24]), "=r"(v[25]), "=r"(v[26]), "=r"(v[27]), "=r"(v[28]), "=r"(v[29]),
                   "=r"(v[30]), "=r"(v[31])
                 : "r"(tmem)
                 : "memory");
}

/* 16 of them. */
__device__ inline void tcgen05_ld_32x32b_x16(uint32_t tmem, uint32_t (&v)[16])
{
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32"
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, [%16];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]),
                   "=r"(v[8]), "=r"(v[9]), "=r"(v[10]), "=r"(v[11]), "=r"(v[12]), "=r"(v[13]), "=r"(v[14]), "=r"(v[15])
                 : "r"(tmem)
                 : "memory");
}

__device__ inline void tcgen05_wait_ld() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }

/* 32 columns of the warp's 32 lanes: a row a thread. */
__device__ inline void tcgen05_st_32x32b_x32(uint32_t tmem, const uint32_t (&v)[32])
{
    asm volatile("tcgen05.st.sync.aligned.32x32b.x32.b32 [%0],"
                 " {%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,"
                 "%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32};" ::"r"(tmem),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(v[7]), "r"(v[8]),
                 "r"(v[9]), "r"(v[10]), "r"(v[11]), "r"(v[12]), "r"(v[13]), "r"(v[14]), "r"(v[15]), "r"(v[16]),
                 "r"(v[17]), "r"(v[18]), "r"(v[19]), "r"(v[20]), "r"(v[21]), "r"(v[22]), "r"(v[23]), "r"(v[24]),
                 "r"(v[25]), "r"(v[26]), "r"(v[27]), "r"(v[28]), "r"(v[29]), "r"(v[30]), "r"(v[31])
                 : "memory");
}

__device__ inline void tcgen05_wait_st() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

#endif
