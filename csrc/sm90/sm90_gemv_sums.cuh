/* The end of the kernels for few tokens: from the sums of warps to rows of D. */
#ifndef NK_SM90_GEMV_SUMS_CUH
#define NK_SM90_GEMV_SUMS_CUH

#include "sm90_gemv.cuh"

/* Which of a tile's teams this warp's is. */
__device__ inline int part_of_tile(const share &w, const sm90_gemv_params &s, int team, int tile)
{
    return team - tile * w.units / s.run;
}

/* One token: the sums of this warp's rows of a tile into shared memory, a lane's four of a row added; they are zero
 * afterwards. */
template <int OCTETS, int TEAM>
__device__ inline void keep_row_sums(const share &w, const sm90_gemv_params &s, int tile, float sums[2],
                                     float *partials)
{
    const int lane = threadIdx.x & 31, part = part_of_tile(w, s, warp_index() / TEAM, tile);
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
    const int lane = threadIdx.x & 31, c = lane & 3, part = part_of_tile(w, s, warp_index(), tile);
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

template <int PATH>
__device__ inline void store_sum(const nk_gemm_problem &p, const share &w, float unit, int token, int place, float sum)
{
    const int64_t n = sm90_gemv_row(w.cta_first + place, is_blocked<PATH>(p.b));
    if (n < p.n) store_float(output_at(p.d, w.l, token, n), p.d.dtype, scale_and_add(p.alpha, p.bias, n, sum * unit));
}

/* Adds the parts of each tile of ROWS in order, and, where CTAs share rows, then those of the cluster's CTAs, which
 * take turns with the rows. `unit` is what a sum of decoded values must be multiplied by. */
template <int PATH, int ROWS>
__device__ inline void store_sums(const nk_gemm_problem &p, const sm90_gemv_params &s, const share &w, int tokens,
                                  float unit, float *partials)
{
    const int count = (int)(w.cta_end - w.cta_first) * tokens, cluster = 1 << s.log_cluster;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        const int place = tokens == 1 ? i : i / tokens, tile = place / ROWS;
        const int parts = w.units ? ((tile + 1) * w.units - 1) / s.run - tile * w.units / s.run + 1 : 0;
        float sum = 0;
        for (int part = 0; part < parts; part++)
            sum += partials[part * s.rows * tokens + i];
        if (cluster == 1)
            store_sum<PATH>(p, w, unit, i - place * tokens, place, sum);
        else
            partials[i] = sum;
    }
    if (cluster == 1) return;
    barrier_cluster();
    const int rank = blockIdx.x & (cluster - 1);
    const uint32_t from = (uint32_t)__cvta_generic_to_shared(partials);
    for (int i = threadIdx.x + blockDim.x * rank; i < count; i += blockDim.x * cluster) {
        const int place = tokens == 1 ? i : i / tokens;
        float sum = 0;
        for (int q = 0; q < cluster; q++)
            sum += ld_shared_cluster(mapa(from + i * 4, q));
        store_sum<PATH>(p, w, unit, i - place * tokens, place, sum);
    }
    barrier_cluster();
}

#endif
