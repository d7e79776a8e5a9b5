/* How kernels of one stream overlap, and how CTAs take the work of CTAs that have yet to start. */
#ifndef NK_GRID_CUH
#define NK_GRID_CUH

#include <stdint.h>

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

/* Asks to take the work of a cluster that has yet to start; the response, 16 bytes, comes to the same address of every
 * CTA of this cluster, whose mbarrier counts them. */
__device__ inline void clusterlaunchcontrol_try_cancel(uint32_t response, uint32_t mbarrier)
{
    asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
                 ".multicast::cluster::all.b128 [%0], [%1];" ::"r"(response),
                 "r"(mbarrier)
                 : "memory");
}

/* What a response says: false if no cluster was left; else `block` is blockIdx.x of its first CTA. */
__device__ inline bool clusterlaunchcontrol_query_cancel(uint32_t response, uint32_t &block)
{
    uint32_t canceled;
    asm volatile("{ .reg .pred p; .reg .b128 r;\n\t"
                 "ld.shared.b128 r, [%2];\n\t"
                 "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t"
                 "mov.u32 %1, 0;\n\t"
                 "@p clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %1, r; }"
                 : "=r"(canceled), "=&r"(block)
                 : "r"(response)
                 : "memory");
    return canceled;
}

#endif
