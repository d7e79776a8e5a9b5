/* A CTA adds the partial logits of a few tokens. Then one warp routes one token: it ranks keys, selects the best,
 * weighs them, and writes.
 *
 * Lane i owns the experts 128 j + 4 i .. + 3 for j < J. A rank is an integer that orders as its key does. A lane finds
 * its best rank; two warp reductions find the best of all and the lowest expert that has it. Lane i keeps selection i.
 */
#ifndef NK_SM80_ROUTE_TOPK_CUH
#define NK_SM80_ROUTE_TOPK_CUH

#include "cuda/epilogue.cuh"
#include "sm80_route_config.h"

#define ALL_LANES 0xFFFFFFFFu
#define RANK_TAKEN 0u /* selected already, or no such expert */
#define RANK_NAN 1u   /* below -inf, which is 0x007FFFFF */

/* Of a warp. */
typedef struct scratch_t {
    float logits[NK_MAX_EXPERTS];
    union {
        float keys[NK_MAX_EXPERTS]; /* with expert groups: keys of experts, then scores of groups */
        uint32_t ranks[NK_MAX_EXPERTS];
    };
} scratch_t;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* -0 and +0 have the same rank. */
__device__ inline uint32_t rank_of(float key)
{
    if (isnan(key)) return RANK_NAN;
    const uint32_t bits = __float_as_uint(key + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

__device__ inline float key_of(const nk_route_problem &p, float logit, int expert)
{
    if (!p.correction_bias) return logit;
    return __fadd_rn(sigmoid(logit), p.correction_bias[expert * p.correction_bias_stride]);
}

/* Which expert, or expert group, this lane's v-th rank belongs to; rises with v. */
__device__ inline int index_of(int v) { return v / 4 * 128 + (threadIdx.x & 31) * 4 + v % 4; }

/* What a lane has of all selections: which one selection `lane` is; a bit for each of 32 lane .. + 31 that is one. */
typedef struct selection {
    int winner;
    uint32_t among;
} selection;

/* Selects the `count` best of n ranks. */
template <int J> __device__ inline selection select(const uint32_t *from, int n, int count)
{
    const int lane = threadIdx.x & 31;
    selection mine = {0, 0};
    uint32_t ranks[4 * J];
#pragma unroll
    for (int v = 0; v < 4 * J; v += 4) {
        const uint4 four = *(const uint4 *)&from[index_of(v)];
        ranks[v] = four.x, ranks[v + 1] = four.y, ranks[v + 2] = four.z, ranks[v + 3] = four.w;
    }
#pragma unroll
    for (int v = 0; v < 4 * J; v++) {
        if (index_of(v) >= n) ranks[v] = RANK_TAKEN;
    }
#pragma unroll 1
    for (int j = 0; j < count; j++) {
        uint32_t best = RANK_TAKEN;
        int at = 0;
#pragma unroll
        for (int v = 0; v < 4 * J; v += 4) { /* pairs first: a chain of comparisons would be all latency */
            const bool right0 = ranks[v + 1] > ranks[v], right1 = ranks[v + 3] > ranks[v + 2];
            const uint32_t best0 = right0 ? ranks[v + 1] : ranks[v], best1 = right1 ? ranks[v + 3] : ranks[v + 2];
            const bool right = best1 > best0;
            const uint32_t four = right ? best1 : best0;
            if (four > best) best = four, at = v + (right ? 2 + right1 : right0);
        }
        const uint32_t top = __reduce_max_sync(ALL_LANES, best), index = index_of(at);
        const uint32_t winner = __reduce_min_sync(ALL_LANES, best == top ? index : ~0u);
#pragma unroll
        for (int v = 0; v < 4 * J; v++) {
            if (v == at && winner == index) ranks[v] = RANK_TAKEN;
        }
        if (j == lane) mine.winner = winner;
        if (winner / 32 == lane) mine.among |= 1u << winner % 32;
    }
    return mine;
}

__device__ inline selection select_any(const uint32_t *ranks, int n, int count)
{
    if (n <= 128) return select<1>(ranks, n, count);
    if (n <= 256) return select<2>(ranks, n, count);
    return n <= 512 ? select<4>(ranks, n, count) : select<8>(ranks, n, count);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Expert groups                                                                                                    */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The two largest numbers so far; NaN where there is none. */
typedef struct top_two {
    float first, second;
} top_two;

__device__ inline void add_to(top_two &two, float key)
{
    if (isnan(key)) return;
    if (!(key <= two.first)) {
        two.second = two.first;
        two.first = key;
    } else if (!(key <= two.second)) {
        two.second = key;
    }
}

/* Turns keys[0 .. n_group) into the scores of expert groups. `lanes` lanes score a group. The scores written so far lie
 * before the keys of the groups still to be scored. */
__device__ inline void score_groups(const nk_route_problem &p, float *keys)
{
    const int groups = (int)p.n_group, size = (int)p.n / groups, lane = threadIdx.x & 31;
    int lanes = 1;
    while (2 * lanes * groups <= 32)
        lanes *= 2;
    for (int g0 = 0; g0 < groups; g0 += 32 / lanes) {
        const int g = g0 + lane / lanes, sub = lane % lanes;
        top_two two = {NAN, NAN};
        for (int i = sub; i < size && g < groups; i += lanes)
            add_to(two, keys[g * size + i]);
        for (int distance = 1; distance < lanes; distance *= 2) {
            const float first = __shfl_xor_sync(ALL_LANES, two.first, distance);
            const float second = __shfl_xor_sync(ALL_LANES, two.second, distance);
            add_to(two, first);
            add_to(two, second);
        }
        __syncwarp();
        const bool both = p.correction_bias && !isnan(two.second);
        if (sub == 0 && g < groups) keys[g] = both ? __fadd_rn(two.first, two.second) : two.first;
        __syncwarp();
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* One token                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

#define SPLITS_AT_ONCE 8

/* The sum of a logit's parts, in the order of K. */
__device__ inline float4 sum_splits(const float *from, int64_t stride, int splits)
{
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int split = 0; split < splits; split += SPLITS_AT_ONCE) {
        float4 parts[SPLITS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < SPLITS_AT_ONCE; i++) {
            parts[i] = make_float4(0, 0, 0, 0);
            if (split + i < splits) parts[i] = __ldcg((const float4 *)(from + (split + i) * stride));
        }
#pragma unroll
        for (int i = 0; i < SPLITS_AT_ONCE; i++)
            sum = sum + parts[i];
    }
    return sum;
}

/* The logits of `count` tokens from m on, by all threads of the CTA. */
__device__ inline void load_logits(const nk_route_problem &p, const sm80_route_params &q, int64_t m, int count,
                                   scratch_t *scratch)
{
    const int quads = q.pitch / 4;
    for (int i = threadIdx.x; i < count * quads; i += SM80_ROUTE_THREADS) {
        const int token = i / quads, n = i % quads * 4;
        const float4 sum = sum_splits(q.partials + (m + token) * q.pitch + n, p.m * q.pitch, q.splits);
        float v[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (!p.alpha.data || n + j < p.n) v[j] = __fmul_rn(alpha_at(p.alpha, n + j), v[j]);
        }
        *(float4 *)&scratch[token].logits[n] = make_float4(v[0], v[1], v[2], v[3]);
    }
}

/* Ranks the experts of the groups that were selected: `groups` has a bit for each group, 32 a lane. */
__device__ inline void rank_experts(const nk_route_problem &p, scratch_t &s, uint32_t groups)
{
    const int lane = threadIdx.x & 31, size = (int)(p.n / p.n_group);
#pragma unroll 1
    for (int n0 = 0; n0 < p.n; n0 += 32) { /* all lanes, for the shuffle */
        const int n = n0 + lane, group = min(n, (int)p.n - 1) / size;
        const bool allowed = __shfl_sync(ALL_LANES, groups, group / 32) >> group % 32 & 1;
        if (n < p.n) s.ranks[n] = allowed ? rank_of(key_of(p, s.logits[n], n)) : RANK_TAKEN;
    }
}

/* The expert that is selection `lane`: first groups are selected, if that is asked for, then experts in them. */
__device__ inline int select_expert(const nk_route_problem &p, scratch_t &s)
{
    const int lane = threadIdx.x & 31, n_group = (int)p.n_group;
    const bool grouped = p.topk_group < p.n_group;
#pragma unroll 4
    for (int n = lane; n < p.n; n += 32) {
        const float key = key_of(p, s.logits[n], n);
        s.ranks[n] = grouped ? __float_as_uint(key) : rank_of(key);
    }
    __syncwarp();
    selection chosen = {0, 0};
#pragma unroll 1
    for (int phase = grouped ? 0 : 1; phase < 2; phase++) {
        const bool of_groups = phase == 0;
        if (of_groups) {
            score_groups(p, s.keys);
            for (int g = lane; g < n_group; g += 32)
                s.ranks[g] = rank_of(s.keys[g]);
        } else if (grouped) {
            rank_experts(p, s, chosen.among);
        }
        __syncwarp();
        chosen = select_any(s.ranks, of_groups ? n_group : (int)p.n, (int)(of_groups ? p.topk_group : p.top_k));
        __syncwarp();
    }
    return chosen.winner;
}

__device__ inline float warp_sum(float v)
{
#pragma unroll
    for (int distance = 16; distance; distance /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, distance);
    return v;
}

/* Leaves NaN out; its exponential makes the sum NaN. */
__device__ inline float warp_max(float v)
{
#pragma unroll
    for (int distance = 16; distance; distance /= 2)
        v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, distance));
    return v;
}

/* The weight of selection `lane`, whose logit is `logit`. Renormalising a softmax over all experts cancels its
 * denominator: what is left is the softmax over the selected. */
__device__ inline float weight_of(const nk_route_problem &p, const float *logits, float logit)
{
    const bool there = (threadIdx.x & 31) < p.top_k;
    float weight;
    if (p.score == NK_SIGMOID) {
        weight = sigmoid(logit);
        const float sum = warp_sum(there ? weight : 0);
        if (p.renormalize) weight /= sum + 1e-20f; /* all-zero scores give zeros */
    } else if (p.score == NK_SOFTMAX_TOPK && !p.renormalize) {
        float largest = -INFINITY, sum = 0;
        for (int n = threadIdx.x & 31; n < p.n; n += 32)
            largest = fmaxf(largest, logits[n]);
        largest = warp_max(largest);
        for (int n = threadIdx.x & 31; n < p.n; n += 32)
            sum += expf(logits[n] - largest);
        weight = expf(logit - largest) / warp_sum(sum);
    } else {
        const float largest = warp_max(there ? logit : -INFINITY), part = expf(logit - largest);
        weight = part / warp_sum(there ? part : 0);
    }
    return __fmul_rn(weight, p.scaling_factor);
}

/* Writes a row of all experts, zeros but for the selected. It uses the logits' memory, which nobody needs any more. */
__device__ inline void store_dense(const nk_route_problem &p, int64_t m, float *row, int expert, float weight)
{
    const int lane = threadIdx.x & 31;
    __syncwarp();
    for (int n = lane; n < p.n; n += 32)
        row[n] = 0;
    __syncwarp();
    if (lane < p.top_k) row[expert] = weight;
    __syncwarp();
    for (int n = lane; n < p.n; n += 32)
        store_float(output_at(p.weights, 0, m, n), p.weights.dtype, row[n]);
}

/* Routes one token, by a warp. */
__device__ inline void route_token(const nk_route_problem &p, int64_t m, scratch_t &s)
{
    const int lane = threadIdx.x & 31;
    const int expert = select_expert(p, s);
    const float weight = weight_of(p, s.logits, s.logits[expert]);
    if (lane < p.top_k) p.ids[m * p.ids_row_stride + lane * p.ids_col_stride] = expert;
    if (p.dense)
        store_dense(p, m, s.logits, expert, weight);
    else if (lane < p.top_k)
        store_float(output_at(p.weights, 0, m, lane), p.weights.dtype, weight);
}

#endif
