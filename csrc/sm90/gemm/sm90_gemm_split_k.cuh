/* Split-K: adds the partial sums of the two consumer groups of a CTA, through the memory of the stages, and those of
 * the two CTAs of a cluster, through distributed shared memory. Each side keeps the sums of half of the tokens. Each
 * sum has two terms, and either order gives the same bits: (group 0 + group 1) of one CTA + the same of the other. */
#ifndef NK_SM90_GEMM_SPLIT_K_CUH
#define NK_SM90_GEMM_SPLIT_K_CUH

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "sm90_gemm_tile.cuh"

__device__ inline void add_quad(float *sums, uint4 quad)
{
    sums[0] += __uint_as_float(quad.x);
    sums[1] += __uint_as_float(quad.y);
    sums[2] += __uint_as_float(quad.z);
    sums[3] += __uint_as_float(quad.w);
}

/* The half that this side keeps, and the one that it sends. Selected, not indexed: sums stay in registers. */
template <int N>
__device__ inline void halve_sums(const float (&sums)[2 * N], bool upper, float (&ours)[N], float (&theirs)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        ours[i] = upper ? sums[N + i] : sums[i];
        theirs[i] = upper ? sums[i] : sums[N + i];
    }
}

/* Both consumer groups' sums of the n8 groups that this one keeps: group 1 the upper half. */
template <class C>
__device__ inline void reduce_consumer_groups(sm90_gemm_memory<C> &s, const consumer &c,
                                              const float (&sums)[C::ACCUMULATORS], float (&ours)[C::ACCUMULATORS / 2])
{
    constexpr int BYTES = C::OWN_N8S * WARPGROUP * 16; /* of a warpgroup */
    float theirs[C::ACCUMULATORS / 2];
    static_assert(sizeof s.stages >= C::WARPGROUPS * C::CONSUMER_GROUPS * BYTES, "the partial sums fit");
    const uint32_t to = shared_address(s.stages) + (c.warpgroup * 2 + c.consumer_group) * BYTES + c.thread * 16;
    const uint32_t from = shared_address(s.stages) + (c.warpgroup * 2 + 1 - c.consumer_group) * BYTES + c.thread * 16;
    halve_sums(sums, c.consumer_group == 1, ours, theirs);
    bar_sync<C::CONSUMER_THREADS>(BARRIER_CONSUMERS);
#pragma unroll
    for (int i = 0; i < C::OWN_N8S; i++) {
        const float *quad = theirs + 4 * i;
        st_shared_v4(to + i * WARPGROUP * 16, make_uint4(__float_as_uint(quad[0]), __float_as_uint(quad[1]),
                                                         __float_as_uint(quad[2]), __float_as_uint(quad[3])));
    }
    bar_sync<C::CONSUMER_THREADS>(BARRIER_CONSUMERS);
#pragma unroll
    for (int i = 0; i < C::OWN_N8S; i++)
        add_quad(ours + 4 * i, ld_shared_v4(from + i * WARPGROUP * 16));
}

/* To the same warpgroup of the peer CTA. `sender` is its number among the warpgroups that send. */
template <class C, int N>
__device__ inline void send_partial_sums(sm90_gemm_memory<C> &s, int sender, int thread, const float (&sums)[N])
{
    const uint32_t peer = cluster_ctarank() ^ 1, full = mapa(shared_address(&s.sums_full), peer);
    const uint32_t to = mapa(shared_address(&s.peer_sums) + (sender * (N / 4) * WARPGROUP + thread) * 16, peer);
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        st_async_v4(to + i * WARPGROUP * 16, sums + 4 * i, full);
}

/* From the same warpgroup of the peer CTA. */
template <class C, int N>
__device__ inline void add_peer_sums(sm90_gemm_memory<C> &s, int sender, int thread, float (&sums)[N])
{
    const uint32_t at = shared_address(&s.peer_sums) + (sender * (N / 4) * WARPGROUP + thread) * 16;
    mbarrier_wait_cluster(shared_address(&s.sums_full), 0);
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        add_quad(sums + 4 * i, ld_shared_v4(at + i * WARPGROUP * 16));
}

#endif
