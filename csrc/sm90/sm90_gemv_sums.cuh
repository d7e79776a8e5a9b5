/* The end of the kernels for few tokens: from the sums of warps to rows of D. */
#ifndef NK_SM90_GEMV_SUMS_CUH
#define NK_SM90_GEMV_SUMS_CUH

#include "sm90_gemv.cuh"

extern __shared__ __align__(128) uint4 smem[];

/* Which of a tile's teams this warp's is. */
__device__ inline int part_of_tile(const share &w, int tile) { return tile == w.first_tile ? w.teams_before : 0; }

/* One token: the sums of this warp's rows of a tile into shared memory, a lane's four of a row added; they are zero
 * afterwards. */
template <int OCTETS, int TEAM>
__device__ inline void keep_row_sums(const share &w, const sm90_gemv_params &s, int tile, float sums[2],
                                     float *partials)
{
    const int lane = threadIdx.x & 31, part = part_of_tile(w, tile);
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
        const int place = first_place<OCTETS, TEAM>(tile) + o * SM90_GEMV_OCTET + (lane >> 2);
        sums[o] += __shfl_xor_sync(~0u, sums[o], 1);
        sums[o] += __shfl_xor_sync(~0u, sums[o], 2);
        if ((lane & 3) == 0 && place < s.rows) partials[part * s.rows + place] = sums[o];
        sums[o] = 0;
    }
}

/* More tokens: the same, of sums that lie as an mma has them. */
template <int OCTETS>
__device__ inline void keep_token_sums(const share &w, const sm90_gemv_params &s, int tile, int tokens, float sums[4],
                                       float *partials)
{
    const int lane = threadIdx.x & 31, c = lane & 3, part = part_of_tile(w, tile);
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
        const int place = first_place<OCTETS, 1>(tile) + o * SM90_GEMV_OCTET + (lane >> 2);
        float *at = partials + (part * s.rows + place) * tokens;
        if (place < s.rows) {
            if (2 * c < tokens) at[2 * c] = sums[2 * o];
            if (2 * c + 1 < tokens) at[2 * c + 1] = sums[2 * o + 1];
        }
    }
    sums[0] = sums[1] = sums[2] = sums[3] = 0;
}

/* Where CTAs share rows, they take turns in ending them: each has an inbox, [CTA][row of its own][token], for what all
 * have of its rows, and a barrier that counts the bytes. */
__device__ inline uint32_t inbox_of(const sm90_gemv_params &s, int tokens, const float *partials)
{
    return (uint32_t)__cvta_generic_to_shared(partials + s.parts * s.rows * tokens);
}

__device__ inline uint32_t inbox_barrier() { return (uint32_t)__cvta_generic_to_shared(smem) + SM90_GEMV_BARRIER_AT; }

__device__ inline int rank_of_cta(const sm90_gemv_params &s) { return blockIdx.x & ((1 << s.log_cluster) - 1); }

/* Before the CTA's barrier that precedes the first sums: parts that no warp has are zero, and an inbox is ready. */
__device__ inline void prepare_sums(const sm90_gemv_params &s, const share &w, int tokens, float *partials)
{
    for (int i = threadIdx.x; i < s.parts * s.rows * tokens; i += blockDim.x)
        partials[i] = 0;
    if (s.log_cluster == 0) return;
    if (threadIdx.x == 0) {
        const int cluster = 1 << s.log_cluster, rows = (w.places - rank_of_cta(s) + cluster - 1) >> s.log_cluster;
        mbarrier_init(inbox_barrier(), 1);
        mbarrier_arrive_expect_tx(inbox_barrier(), max(rows, 0) * cluster * tokens * 4);
        fence_mbarrier_init();
    }
    __syncwarp();
    barrier_cluster_arrive_relaxed();
}

template <int PATH>
__device__ inline void store_sum(const nk_gemm_problem &p, const share &w, float unit, int token, int place, float sum)
{
    const int row = row_at<PATH>(p, w, place);
    const int64_t n = w.first_row + row;
    if (row < w.rows)
        store_float(output_at(p.d, w.l, token, n), p.d.dtype, scale_and_add(p.alpha, p.bias, n, sum * unit));
}

/* Tokens are dealt out by powers of two: of as many, or more. */
__device__ inline int log_columns_of(int tokens) { return tokens == 1 ? 0 : 32 - __clz(tokens - 1); }

/* Adds the parts of each sum in order, and, where CTAs share rows, then those of the cluster's CTAs. A row is a power
 * of two of threads', of which the first `tokens`, at most MOST_TOKENS, have something to do. `unit` is what a sum of
 * decoded values must be multiplied by. */
template <int PATH, int MOST_TOKENS>
__device__ inline void finish_sums(const nk_gemm_problem &p, const sm90_gemv_params &s, const share &w, int tokens,
                                   float unit, const float *partials)
{
    const int log_columns = MOST_TOKENS == 1 ? 0 : log_columns_of(tokens), step = blockDim.x >> log_columns;
    const int token = threadIdx.x & ((1 << log_columns) - 1), first = threadIdx.x >> log_columns;
    const int rank = rank_of_cta(s), log_cluster = s.log_cluster, places = token < tokens ? w.places : 0;
    const uint32_t inbox = inbox_of(s, tokens, partials) + token * 4;
    const int inbox_rows = sm90_gemv_inbox_rows(s.rows, log_cluster);
    if (log_cluster) barrier_cluster_wait(); /* every inbox is ready */
    for (int place = first; place < places; place += step) {
        float sum = 0;
#pragma unroll 4
        for (int part = 0; part < s.parts; part++)
            sum += partials[(part * s.rows + place) * tokens + token];
        if (log_cluster == 0) {
            store_sum<PATH>(p, w, unit, token, place, sum);
            continue;
        }
        const uint32_t at = inbox + (rank * inbox_rows + (place >> log_cluster)) * tokens * 4;
        const int owner = place & ((1 << log_cluster) - 1);
        st_async(mapa(at, owner), sum, mapa(inbox_barrier(), owner));
    }
    if (log_cluster == 0) return;
    mbarrier_wait_cluster(inbox_barrier(), 0);
    for (int row = first, place; (place = row << log_cluster | rank) < places; row += step) {
        float sum = 0;
        for (int q = 0; q >> log_cluster == 0; q++)
            sum += __uint_as_float(ld_shared(inbox + (q * inbox_rows + row) * tokens * 4));
        store_sum<PATH>(p, w, unit, token, place, sum);
    }
}

#endif
