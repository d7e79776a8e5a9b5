/* What a router's warp orders experts by: keys made of logits, ranks that order as keys do, and which lane has them. */
#ifndef NK_ROUTE_RANK_CUH
#define NK_ROUTE_RANK_CUH

#include "cuda/ptx/arithmetic.cuh"
#include "cuda_route.h"
#include "epilogue.cuh"
#include "nk_math.h"

#define ALL_LANES 0xFFFFFFFFu
#define RANK_TAKEN 0u /* selected already, or no such expert */
#define RANK_NAN 1u   /* below -inf, which is 0x007FFFFF */

/* Of a warp: a number for each expert, twice. */
typedef struct scratch_t {
    float *logits;
    union {
        float *keys; /* with expert groups: keys of experts, then scores of groups */
        uint32_t *ranks;
    };
} scratch_t;

/* Scratch number `i` of those at `memory`, each with room for so many experts. */
__device__ inline scratch_t scratch_at(void *memory, int i, int experts)
{
    scratch_t s;
    s.logits = (float *)memory + 2 * i * experts;
    s.keys = s.logits + experts;
    return s;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ inline float sqrt_softplus(float x) { return nk_sqrt_softplus(x, expf(fabsf(x) * -0.5f)); }

/* sigmoid() of each, to the bit. A reciprocal has a branch for results below the smallest normal number; here all have
 * one together, so that they overlap. */
template <int N> __device__ inline void sigmoids(float (&x)[N])
{
    float divisors[N];
    bool rare = false;
#pragma unroll
    for (int i = 0; i < N; i++) {
        divisors[i] = 1.0f + expf(-x[i]);
        rare |= !(divisors[i] < 0x1p125f);
        x[i] = rcp_approx_ftz(divisors[i]);
        x[i] = __fmaf_rn(x[i], __fmaf_rn(-divisors[i], x[i], 1.0f), x[i]);
    }
    if (!rare) return;
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = 1.0f / divisors[i];
}

/* -0 and +0 have the same rank. Without branches: lanes would take them apart. */
__device__ inline uint32_t rank_of(float key)
{
    const uint32_t bits = __float_as_uint(key + 0.0f);
    const uint32_t rank = bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000);
    return isnan(key) ? RANK_NAN : rank;
}

/* The key of a rank; NaN also if there is none. */
__device__ inline float key_of_rank(uint32_t rank)
{
    const uint32_t bits = rank >> 31 ? rank ^ 0x80000000 : ~rank;
    return rank <= RANK_NAN ? NAN : __uint_as_float(bits);
}

template <int LANES> __device__ inline float sum_of_lanes(float v)
{
#pragma unroll
    for (int distance = LANES / 2; distance; distance /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, distance);
    return v;
}

__device__ inline float warp_sum(float v) { return sum_of_lanes<32>(v); }

/* Leaves NaN out; its exponential makes the sum NaN. */
__device__ inline float warp_max(float v)
{
#pragma unroll
    for (int distance = 16; distance; distance /= 2)
        v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, distance));
    return v;
}

/* What a softmax over all experts takes of the others. */
typedef struct softmax_terms {
    float largest, sum;
} softmax_terms;

__device__ inline softmax_terms softmax_of_all(const float *logits, int experts)
{
    float largest = -INFINITY, sum = 0;
    for (int n = threadIdx.x & 31; n < experts; n += 32)
        largest = fmaxf(largest, logits[n]);
    largest = warp_max(largest);
    for (int n = threadIdx.x & 31; n < experts; n += 32)
        sum += expf(logits[n] - largest);
    return {largest, warp_sum(sum)};
}

/* What a correction bias is added to. `all` is for a softmax over all experts. */
__device__ inline float score_of_logit(nk_score score, float logit, softmax_terms all)
{
    if (score == NK_SIGMOID) return sigmoid(logit);
    if (score == NK_SQRT_SOFTPLUS) return sqrt_softplus(logit);
    return score == NK_SOFTMAX_TOPK ? expf(logit - all.largest) / all.sum : logit;
}

/* If the score is sigmoid. */
__device__ inline float key_of_logit(const nk_route_problem &p, float logit, int expert)
{
    if (!p.correction_bias) return logit;
    return __fadd_rn(sigmoid(logit), p.correction_bias[expert * p.correction_bias_stride]);
}

/* Keys of all experts, by a warp. PLAIN: see cuda_route_is_plain(). */
template <bool PLAIN> __device__ inline void make_keys(const nk_route_problem &p, const scratch_t &s)
{
    const float *bias = p.correction_bias;
    softmax_terms all = {0, 1};
    if (!PLAIN && bias && p.score == NK_SOFTMAX_TOPK) all = softmax_of_all(s.logits, (int)p.n);
#pragma unroll 1
    for (int n = threadIdx.x & 31; n < p.n; n += 32) {
        const float logit = s.logits[n];
        const float score = PLAIN ? sigmoid(logit) : score_of_logit(p.score, logit, all);
        s.keys[n] = bias ? __fadd_rn(score, bias[n * p.correction_bias_stride]) : logit;
    }
    __syncwarp();
}

/* Which expert, or expert group, this lane's v-th rank belongs to; rises with v. */
__device__ inline int index_of(int v) { return v / 4 * 128 + (threadIdx.x & 31) * 4 + v % 4; }

/* Biases of experts n .. n + 3; anything beyond the last. */
__device__ inline float4 biases_at(const nk_route_problem &p, int n)
{
    const float *at = p.correction_bias;
    const int64_t stride = p.correction_bias_stride;
    const int last = (int)p.n - 1;
    if (stride == 1 && p.n % 4 == 0 && (uintptr_t)at % 16 == 0) return *(const float4 *)&at[min(n, last - 3)];
    return make_float4(at[min(n, last) * stride], at[min(n + 1, last) * stride], at[min(n + 2, last) * stride],
                       at[min(n + 3, last) * stride]);
}

/* Makes keys of logits, 4 FOURS of them at once, if scores are sigmoids. */
template <int FOURS> __device__ inline void add_biases(const nk_route_problem &p, int first, float *keys)
{
    float4 bias[FOURS];
    float scores[4 * FOURS];
#pragma unroll
    for (int i = 0; i < FOURS; i++)
        bias[i] = biases_at(p, first + 128 * i);
#pragma unroll
    for (int i = 0; i < 4 * FOURS; i++)
        scores[i] = keys[i];
    sigmoids(scores);
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
        keys[4 * i] = __fadd_rn(scores[4 * i], bias[i].x);
        keys[4 * i + 1] = __fadd_rn(scores[4 * i + 1], bias[i].y);
        keys[4 * i + 2] = __fadd_rn(scores[4 * i + 2], bias[i].z);
        keys[4 * i + 3] = __fadd_rn(scores[4 * i + 3], bias[i].w);
    }
}

#endif
