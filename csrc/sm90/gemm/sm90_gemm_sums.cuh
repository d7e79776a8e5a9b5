/* Sums of a tile whose K is divided: parts of a CTA add up through the ring's memory, CTAs of a cluster through each
 * other's. Each ends half of the tokens, and every order of adding gives the same bits, since there are two terms. */
#ifndef NK_SM90_GEMM_SUMS_CUH
#define NK_SM90_GEMM_SUMS_CUH

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

/* Selected, not indexed: sums stay in registers. */
template <int N>
__device__ inline void halve(const float (&sums)[2 * N], bool upper, float (&ours)[N], float (&theirs)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        ours[i] = upper ? sums[N + i] : sums[i];
        theirs[i] = upper ? sums[i] : sums[N + i];
    }
}

/* Both parts' sums of the eights that this part ends: part 1 the upper half. */
template <class C>
__device__ inline void join_parts(gemm_memory<C> &s, const consumer &c, const float (&sums)[C::SUMS],
                                  float (&ours)[C::SUMS / 2])
{
    constexpr int BYTES = C::OF_PART * WARPGROUP * 16; /* of a warpgroup */
    float theirs[C::SUMS / 2];
    static_assert(sizeof s.ring >= 4 * BYTES, "what parts give each other fits");
    const uint32_t to = shared_address(s.ring) + (c.rows * 2 + c.part) * BYTES + c.thread * 16;
    const uint32_t from = shared_address(s.ring) + (c.rows * 2 + 1 - c.part) * BYTES + c.thread * 16;
    halve(sums, c.part == 1, ours, theirs);
    bar_sync<C::CONSUMERS>(BARRIER_CONSUMERS);
#pragma unroll
    for (int i = 0; i < C::OF_PART; i++) {
        const float *quad = theirs + 4 * i;
        st_shared_v4(to + i * WARPGROUP * 16, make_uint4(__float_as_uint(quad[0]), __float_as_uint(quad[1]),
                                                         __float_as_uint(quad[2]), __float_as_uint(quad[3])));
    }
    bar_sync<C::CONSUMERS>(BARRIER_CONSUMERS);
#pragma unroll
    for (int i = 0; i < C::OF_PART; i++)
        add_quad(ours + 4 * i, ld_shared_v4(from + i * WARPGROUP * 16));
}

/* To the peer's warpgroup of this number. */
template <class C, int N>
__device__ inline void send_sums(gemm_memory<C> &s, int warpgroup, int thread, const float (&sums)[N])
{
    const uint32_t peer = cluster_ctarank() ^ 1, full = mapa(shared_address(&s.sums_full), peer);
    const uint32_t to = mapa(shared_address(&s.sums) + (warpgroup * (N / 4) * WARPGROUP + thread) * 16, peer);
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        st_async_v4(to + i * WARPGROUP * 16, sums + 4 * i, full);
}

/* What the peer's warpgroup of this number has sent. */
template <class C, int N>
__device__ inline void add_sent(gemm_memory<C> &s, int warpgroup, int thread, float (&sums)[N])
{
    const uint32_t at = shared_address(&s.sums) + (warpgroup * (N / 4) * WARPGROUP + thread) * 16;
    mbarrier_wait_cluster(shared_address(&s.sums_full), 0);
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        add_quad(sums + 4 * i, ld_shared_v4(at + i * WARPGROUP * 16));
}

#endif
