/* Accumulators: their barriers, loads from tensor memory, and with split K their reduction over the cluster. Each CTA
 * stores EPILOGUE_N columns of a tile. Its peers, the CTAs of the same rank in the pair that have other shares of K,
 * send it their partial sums of these columns, and it adds them in the order of K. */
#ifndef NK_SM100_GEMM_SPLIT_K_CUH
#define NK_SM100_GEMM_SPLIT_K_CUH

#include "cuda/vectors.cuh"
#include "sm100_gemm_scheduler.cuh"

/* The barriers between MMAs, epilogues and the inbox. */
template <class C, typename SMEM> __device__ inline void init_epilogue_barriers(SMEM &s)
{
    for (int i = 0; i < C::ACCUMULATORS; i++) {
        mbarrier_init(shared_address(&s.accumulator_full[i]), 1);
        mbarrier_init(shared_address(&s.accumulator_empty[i]), C::CTA_GROUP * SM100_GEMM_EPILOGUE_WARPS);
    }
    if constexpr (C::SPLIT_K > 1) {
        mbarrier_init(shared_address(&s.inbox_full), 1);
        mbarrier_init(shared_address(&s.peers_ready), (C::SPLIT_K - 1) * SM100_GEMM_EPILOGUE_WARPS);
    }
}

__device__ inline void load_tmem(uint32_t at, uint32_t (&v)[32]) { tcgen05_ld_32x32b_x32(at, v); }
__device__ inline void load_tmem(uint32_t at, uint32_t (&v)[16]) { tcgen05_ld_32x32b_x16(at, v); }

/* LOAD_N columns of each matrix's accumulator, from tensor memory address `at` on. */
template <class C> __device__ inline void load_accumulator(uint32_t at, uint32_t (&sums)[C::MATRICES][C::LOAD_N])
{
    __syncwarp();
#pragma unroll
    for (int i = 0; i < C::MATRICES; i++)
        load_tmem(at + i * C::MMA_N, sums[i]);
    tcgen05_wait_ld();
}

/* The cluster rank of the peer that has share `split` of K. */
template <class C> __device__ inline uint32_t peer_rank(const mma_tile_scheduler &scheduler, int split)
{
    return (uint32_t)(split * C::CTA_GROUP + scheduler.rank_in_pair);
}

/* The entry of CTA `to`'s inbox that CTA `from` writes; a CTA has none for itself. */
__device__ inline int inbox_entry(int from, int to) { return from < to ? from : from - 1; }

/* Sends each peer the partial sums of that peer's columns, once all peers have read their inboxes. st.async counts its
 * bytes at the receiving peer's inbox_full. */
template <class C, typename SMEM>
__device__ inline void send_sums_to_peers(SMEM &s, const mma_tile_scheduler &scheduler, uint32_t accumulator,
                                          uint32_t parity)
{
    if (threadIdx.x == 0) mbarrier_arrive_expect_tx(shared_address(&s.inbox_full), sizeof s.inbox);
    mbarrier_wait_cluster(shared_address(&s.peers_ready), parity ^ 1);
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
template <class C, typename SMEM>
__device__ inline void add_partial_sums(const SMEM &s, int split, int column, uint32_t (&sums)[C::MATRICES][C::LOAD_N])
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

/* Tells each peer that this CTA has read its inbox, so that the peer may send the next tile's sums. */
template <class C, typename SMEM> __device__ inline void release_inbox(SMEM &s, const mma_tile_scheduler &scheduler)
{
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
#pragma unroll
    for (int i = 1; i < C::SPLIT_K; i++)
        mbarrier_arrive_remote(
            mapa(shared_address(&s.peers_ready), peer_rank<C>(scheduler, (scheduler.split + i) % C::SPLIT_K)));
}

#endif
