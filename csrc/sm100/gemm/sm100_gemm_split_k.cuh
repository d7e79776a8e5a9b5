/* Accumulators out of tensor memory, and their reduction over the cluster with split K: each CTA (of each rank in a
 * pair) has the epilogue of EPILOGUE_N columns. Its peers, the CTAs of the same rank that have other shares of K, send
 * their partial sums of these columns to its inbox, and it adds them in the order of K. M: the kernel's shared memory.
 */
#ifndef NK_SM100_GEMM_SPLIT_K_CUH
#define NK_SM100_GEMM_SPLIT_K_CUH

#include "cuda/vectors.cuh"
#include "sm100_gemm_scheduler.cuh"

/* The barriers between MMAs, epilogues and the inbox. */
template <class C, typename M> __device__ inline void init_epilogue_barriers(M &s)
{
    for (int i = 0; i < C::ACCUMULATORS; i++) {
        mbarrier_init(shared_address(&s.accumulator_full[i]), 1);
        mbarrier_init(shared_address(&s.accumulator_empty[i]), C::CTA_GROUP * SM100_GEMM_EPILOGUE_WARPS);
    }
    if constexpr (C::SPLIT_K > 1) {
        mbarrier_init(shared_address(&s.inbox_full), 1);
        mbarrier_init(shared_address(&s.inbox_empty), (C::SPLIT_K - 1) * SM100_GEMM_EPILOGUE_WARPS);
    }
}

__device__ inline void load_tmem(uint32_t at, uint32_t (&v)[32]) { tcgen05_ld_32x32b_x32(at, v); }
__device__ inline void load_tmem(uint32_t at, uint32_t (&v)[16]) { tcgen05_ld_32x32b_x16(at, v); }

/* LOAD_N columns of each matrix's accumulator, from column `at` of tensor memory on. */
template <class C> __device__ inline void load_accumulator(uint32_t at, uint32_t (&sums)[C::MATRICES][C::LOAD_N])
{
    __syncwarp();
#pragma unroll
    for (int i = 0; i < C::MATRICES; i++)
        load_tmem(at + i * C::MMA_N, sums[i]);
    tcgen05_wait_ld();
}

/* The rank in the cluster of the peer that has share `split` of K. */
template <class C> __device__ inline uint32_t peer_rank(const mma_tile_scheduler &scheduler, int split)
{
    return (uint32_t)(split * C::CTA_GROUP + scheduler.pair_rank);
}

/* Which entry of `to`'s inbox is `from`'s. */
__device__ inline int inbox_entry(int from, int to) { return from < to ? from : from - 1; }

/* Sends each peer the partial sums of its columns, once its inbox is empty; st.async counts the bytes at its barrier.
 */
template <class C, typename M>
__device__ inline void send_sums_to_peers(M &s, const mma_tile_scheduler &scheduler, uint32_t accumulator,
                                          uint32_t parity)
{
    if (threadIdx.x == 0) mbarrier_arrive_expect_tx(shared_address(&s.inbox_full), sizeof s.inbox);
    mbarrier_wait_cluster(shared_address(&s.inbox_empty), parity ^ 1);
#pragma unroll 1
    for (int i = 1; i < C::SPLIT_K; i++) {
        const int to = (scheduler.split + i) % C::SPLIT_K;
        const uint32_t peer = peer_rank<C>(scheduler, to), full = mapa(shared_address(&s.inbox_full), peer);
        const uint32_t inbox =
            mapa(shared_address(&s.inbox[inbox_entry(scheduler.split, to)][0][0][threadIdx.x]), peer);
#pragma unroll 1
        for (int column = 0; column < C::EPILOGUE_N; column += C::LOAD_N) {
            uint32_t sums[C::MATRICES][C::LOAD_N];
            load_accumulator<C>(accumulator + to * C::EPILOGUE_N + column, sums);
#pragma unroll
            for (int j = 0; j < C::MATRICES * C::LOAD_N; j += 4) {
                const uint32_t *v = &sums[j / C::LOAD_N][j % C::LOAD_N];
                const float four[4] = {__uint_as_float(v[0]), __uint_as_float(v[1]), __uint_as_float(v[2]),
                                       __uint_as_float(v[3])};
                const int quad = (j / C::LOAD_N * C::EPILOGUE_N + column + j % C::LOAD_N) / 4;
                st_async_v4(inbox + quad * (int)sizeof s.inbox[0][0][0], four, full);
            }
        }
    }
}

/* Adds the peers' partial sums; `column` counts from the CTA's first epilogue column. */
template <class C, typename M>
__device__ inline void add_partial_sums(const M &s, int split, int column, uint32_t (&sums)[C::MATRICES][C::LOAD_N])
{
#pragma unroll
    for (int j = 0; j < C::MATRICES * C::LOAD_N; j += 4) {
        uint32_t *v = &sums[j / C::LOAD_N][j % C::LOAD_N];
        const float4 own =
            make_float4(__uint_as_float(v[0]), __uint_as_float(v[1]), __uint_as_float(v[2]), __uint_as_float(v[3]));
        float4 sum = own;
#pragma unroll
        for (int from = 0; from < C::SPLIT_K; from++) {
            float4 partial = own;
            if (from != split)
                partial = s.inbox[inbox_entry(from, split)][j / C::LOAD_N][(column + j % C::LOAD_N) / 4][threadIdx.x];
            sum = from == 0 ? partial : sum + partial;
        }
        v[0] = __float_as_uint(sum.x), v[1] = __float_as_uint(sum.y);
        v[2] = __float_as_uint(sum.z), v[3] = __float_as_uint(sum.w);
    }
}

/* Lets each peer send again. */
template <class C, typename M> __device__ inline void release_inbox(M &s, const mma_tile_scheduler &scheduler)
{
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
#pragma unroll
    for (int i = 1; i < C::SPLIT_K; i++)
        mbarrier_arrive_cluster(
            mapa(shared_address(&s.inbox_empty), peer_rank<C>(scheduler, (scheduler.split + i) % C::SPLIT_K)));
}

#endif
