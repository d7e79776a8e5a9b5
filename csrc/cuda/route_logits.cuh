/* A CTA adds the partial sums of a few tokens' logits, or reads logits that are given. */
#ifndef NK_ROUTE_LOGITS_CUH
#define NK_ROUTE_LOGITS_CUH

#include "route_sums.cuh"
#include "route_topk.cuh"

/* Four neighbours of a row of the logits given; zeros beyond them. */
__device__ inline float4 given_logits(const nk_route_problem &p, int64_t m, int n)
{
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint8_t *at = p.logits.data + m * p.logits.row_stride + (n + j) * p.logits.k_stride;
        v[j] = n + j < p.n ? load_float(at, p.logits.dtype) : 0;
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* The logits of `count` tokens from m on, by all threads of the CTA, to scratch with room for so many experts each.
 * GIVEN: they are the caller's. Else partial sums are in q.partials, [q.splits of K][M][q.pitch]. */
template <bool GIVEN, int THREADS, typename Q>
__device__ inline void load_logits_of_tokens(const nk_route_problem &p, const Q &q, int64_t m, int count, void *scratch,
                                             int experts)
{
    const int quads = q.pitch / 4;
    for (int i = threadIdx.x; i < count * quads; i += THREADS) {
        const int token = i / quads, n = i % quads * 4;
        const float4 sum = GIVEN ? given_logits(p, m + token, n)
                                 : sum_splits(q.partials + (m + token) * q.pitch + n, p.m * q.pitch, q.splits);
        float v[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (!p.alpha.data || n + j < p.n) v[j] = __fmul_rn(alpha_at(p.alpha, n + j), v[j]);
        }
        *(float4 *)&scratch_at(scratch, token, experts).logits[n] = make_float4(v[0], v[1], v[2], v[3]);
    }
}

#endif
