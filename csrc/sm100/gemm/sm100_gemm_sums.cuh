/* Sums out of tensor memory, of split tiles with those of other parts: each part finishes the sums of OWN columns. It
 * gets the others' into its inbox, lane by lane, and adds them in the order of K. M: the kernel's shared memory. */
#ifndef NK_SM100_GEMM_SUMS_CUH
#define NK_SM100_GEMM_SUMS_CUH

#include "cuda/vectors.cuh"
#include "sm100_gemm_parts.cuh"

/* The barriers of accumulators and of the inbox. */
template <class C, typename M> __device__ inline void initialise_sums(M &s)
{
    for (int i = 0; i < C::ACCUMULATORS; i++) {
        mbarrier_init(shared_address(&s.sums_full[i]), 1);
        mbarrier_init(shared_address(&s.sums_empty[i]), C::CTAS * SM100_GEMM_EPILOGUE_WARPS);
    }
    if constexpr (C::PARTS > 1) {
        mbarrier_init(shared_address(&s.inbox_full), 1);
        mbarrier_init(shared_address(&s.inbox_empty), (C::PARTS - 1) * SM100_GEMM_EPILOGUE_WARPS);
    }
}

__device__ inline void load_window(uint32_t at, uint32_t (&v)[32]) { tcgen05_ld_32x32b_x32(at, v); }
__device__ inline void load_window(uint32_t at, uint32_t (&v)[16]) { tcgen05_ld_32x32b_x16(at, v); }

/* A window of each matrix. */
template <class C> __device__ inline void load_sums(uint32_t at, uint32_t (&sums)[C::MATRICES][C::WINDOW])
{
    __syncwarp();
#pragma unroll
    for (int i = 0; i < C::MATRICES; i++)
        load_window(at + i * C::COLUMNS, sums[i]);
    tcgen05_wait_ld();
}

/* The rank of the CTA that has the same lanes in another part. */
template <class C> __device__ inline uint32_t rank_of(const gemm_tiles &tiles, int part)
{
    return (uint32_t)(part * C::CTAS + tiles.half);
}

/* Where a part's sums lie in the inbox of another one. */
__device__ inline int inbox_index(int from, int to) { return from < to ? from : from - 1; }

/* To each other part the sums of its columns, once its inbox is empty; it hears of the bytes. */
template <class C, typename M>
__device__ inline void send_sums(M &s, const gemm_tiles &tiles, uint32_t accumulator, uint32_t parity)
{
    if (threadIdx.x == 0) mbarrier_arrive_expect_tx(shared_address(&s.inbox_full), sizeof s.inbox);
    mbarrier_wait_cluster(shared_address(&s.inbox_empty), parity ^ 1);
#pragma unroll 1
    for (int i = 1; i < C::PARTS; i++) {
        const int to = (tiles.part + i) % C::PARTS;
        const uint32_t full = mapa(shared_address(&s.inbox_full), rank_of<C>(tiles, to));
        const uint32_t inbox =
            mapa(shared_address(&s.inbox[inbox_index(tiles.part, to)][0][0][threadIdx.x]), rank_of<C>(tiles, to));
#pragma unroll 1
        for (int column = 0; column < C::OWN; column += C::WINDOW) {
            uint32_t sums[C::MATRICES][C::WINDOW];
            load_sums<C>(accumulator + to * C::OWN + column, sums);
#pragma unroll
            for (int j = 0; j < C::MATRICES * C::WINDOW; j += 4) {
                const uint32_t *v = &sums[j / C::WINDOW][j % C::WINDOW];
                const float four[4] = {__uint_as_float(v[0]), __uint_as_float(v[1]), __uint_as_float(v[2]),
                                       __uint_as_float(v[3])};
                const int quad = (j / C::WINDOW * C::OWN + column + j % C::WINDOW) / 4;
                st_async_v4(inbox + quad * (int)sizeof s.inbox[0][0][0], four, full);
            }
        }
    }
}

/* `column`: of this part's. */
template <class C, typename M>
__device__ inline void add_parts(const M &s, int part, int column, uint32_t (&sums)[C::MATRICES][C::WINDOW])
{
#pragma unroll
    for (int j = 0; j < C::MATRICES * C::WINDOW; j += 4) {
        uint32_t *v = &sums[j / C::WINDOW][j % C::WINDOW];
        const float4 own =
            make_float4(__uint_as_float(v[0]), __uint_as_float(v[1]), __uint_as_float(v[2]), __uint_as_float(v[3]));
        float4 sum = own;
#pragma unroll
        for (int from = 0; from < C::PARTS; from++) {
            float4 of_part = own;
            if (from != part)
                of_part = s.inbox[inbox_index(from, part)][j / C::WINDOW][(column + j % C::WINDOW) / 4][threadIdx.x];
            sum = from == 0 ? of_part : sum + of_part;
        }
        v[0] = __float_as_uint(sum.x), v[1] = __float_as_uint(sum.y);
        v[2] = __float_as_uint(sum.z), v[3] = __float_as_uint(sum.w);
    }
}

/* Each other part may send again. */
template <class C, typename M> __device__ inline void free_inbox(M &s, const gemm_tiles &tiles)
{
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
#pragma unroll
    for (int i = 1; i < C::PARTS; i++)
        mbarrier_arrive_cluster(mapa(shared_address(&s.inbox_empty), rank_of<C>(tiles, (tiles.part + i) % C::PARTS)));
}

#endif
