/* Barriers of threads: named ones of a CTA, those of a cluster, and what orders memory between proxies. */
#ifndef NK_BARRIER_CUH
#define NK_BARRIER_CUH

#include <stdint.h>

/* For THREADS threads, whole warps; number 0 is __syncthreads'. */
template <int THREADS> __device__ inline void bar_sync(int number)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

/* For all threads of all CTAs of the cluster; _aligned: a warp's lanes come together. What was written before the
 * arrival is seen behind the wait, of a relaxed one only initialised mbarriers. */
__device__ inline void barrier_cluster_arrive_aligned()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ inline void barrier_cluster_arrive_relaxed()
{
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

__device__ inline void barrier_cluster_arrive_relaxed_aligned()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ inline void barrier_cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

__device__ inline void barrier_cluster_wait_aligned()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Asynchronous copies and MMAs after it see what this thread wrote to shared memory, and what it has seen written
 * there. */
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif
