/* One warp routes one token: it ranks the keys that its logits make, selects the best, weighs them, and writes.
 *
 * Lane i owns the experts 128 j + 4 i .. + 3 for j < J. A rank is an integer that orders as its key does. At least k
 * lanes have a best rank of no less than some threshold; then the k best experts have none less either. The few experts
 * that reach it are candidates, one a lane, and each counts those that are better: that is its place. Where more than
 * 32 reach it, since ranks are equal, rounds select one expert each: a lane finds its best rank; two warp reductions
 * find the best of all and the lowest expert that has it. Lane i keeps selection i. */
#ifndef NK_ROUTE_TOPK_CUH
#define NK_ROUTE_TOPK_CUH

#include "cuda/ptx/arithmetic.cuh"
#include "cuda_route.h"
#include "epilogue.cuh"

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

/* The key of a rank; NaN also where there is none. */
__device__ inline float key_of_rank(uint32_t rank)
{
    const uint32_t bits = rank >> 31 ? rank ^ 0x80000000 : ~rank;
    return rank <= RANK_NAN ? NAN : __uint_as_float(bits);
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

/* Selects the `count` best in rounds; of the ranks those remain that were not selected. */
template <int J> __device__ inline selection select_in_rounds(uint32_t (&ranks)[4 * J], int count)
{
    const int lane = threadIdx.x & 31;
    selection mine = {0, 0};
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

/* What candidates are found in. */
typedef struct candidates_t {
    uint32_t winners[32];
    uint2 of[32]; /* rank, expert */
} candidates_t;

/* The expert that is selection `lane` of up to 32, 0 in lanes behind; `memory` is that of 96 words or more. */
template <int J> __device__ inline int select_few(uint32_t (&ranks)[4 * J], int count, uint32_t *memory)
{
    const int lane = threadIdx.x & 31;
    candidates_t &c = *(candidates_t *)memory;
    uint32_t best = RANK_TAKEN;
#pragma unroll
    for (int v = 0; v < 4 * J; v++)
        best = max(best, ranks[v]);
    uint32_t threshold = RANK_TAKEN;
#pragma unroll 1
    for (int i = 0; i < count; i++) { /* the best ranks of lanes, one after the other; equal ones at once */
        threshold = __reduce_max_sync(ALL_LANES, best);
        if (best == threshold) best = RANK_TAKEN;
    }
    threshold = max(threshold, RANK_TAKEN + 1);
    __syncwarp();
    int found = 0;
#pragma unroll
    for (int v = 0; v < 4 * J; v++) {
        const uint32_t those = __ballot_sync(ALL_LANES, ranks[v] >= threshold);
        const int at = found + __popc(those & ((1u << lane) - 1));
        if (ranks[v] >= threshold && at < 32) c.of[at] = make_uint2(ranks[v], index_of(v));
        found += __popc(those);
    }
    __syncwarp();
    if (found > 32) return select_in_rounds<J>(ranks, count).winner;
    const uint2 mine = c.of[lane];
    int better = 0;
#pragma unroll 4
    for (int i = 0; i < found; i++) {
        const uint2 other = c.of[i];
        better += other.x > mine.x || (other.x == mine.x && other.y < mine.y);
    }
    if (lane < found && better < count) c.winners[better] = mine.y;
    __syncwarp();
    return lane < count ? c.winners[lane] : 0;
}

template <int J_> struct fours {
    static constexpr int J = J_;
};

/* Calls `f` with as many fours of experts as a lane has. */
template <typename F> __device__ inline auto with_fours(int n, F f)
{
    if (n <= 128) return f(fours<1>());
    if (n <= 256) return f(fours<2>());
    return n <= 512 ? f(fours<4>()) : f(fours<8>());
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Expert groups                                                                                                    */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The two best ranks so far. */
typedef struct top_two {
    uint32_t first, second;
} top_two;

__device__ inline void add_to(top_two &two, uint32_t rank)
{
    two.second = max(two.second, min(two.first, rank));
    two.first = max(two.first, rank);
}

/* How many lanes score a group, at most 32 of them at once. */
__device__ inline int lanes_of_group(int groups)
{
    int lanes = 1;
    while (2 * lanes * groups <= 32)
        lanes *= 2;
    return lanes;
}

/* The score of group g, by `lanes` lanes that are neighbours; of no group anything. */
__device__ inline float score_of(const nk_route_problem &p, const float *keys, int g, int lanes)
{
    const int size = (int)p.n / (int)p.n_group;
    top_two two = {RANK_TAKEN, RANK_TAKEN};
#pragma unroll 4
    for (int i = threadIdx.x % lanes; i < size && g < p.n_group; i += lanes)
        add_to(two, rank_of(keys[g * size + i]));
    for (int distance = 1; distance < lanes; distance *= 2) {
        const uint32_t first = __shfl_xor_sync(ALL_LANES, two.first, distance);
        const uint32_t second = __shfl_xor_sync(ALL_LANES, two.second, distance);
        add_to(two, first);
        add_to(two, second);
    }
    const float first = key_of_rank(two.first), second = key_of_rank(two.second);
    return p.correction_bias && two.second > RANK_NAN ? __fadd_rn(first, second) : first;
}

#define FEW_GROUPS 32 /* a lane has one */

/* A bit for each of few groups that experts are selected from: those with fewer than topk_group better ones. */
__device__ inline uint32_t select_groups(const nk_route_problem &p, const float *keys)
{
    const int groups = (int)p.n_group, lane = threadIdx.x & 31, lanes = lanes_of_group(groups);
    const float score = score_of(p, keys, lane / lanes, lanes);
    const uint32_t rank = rank_of(__shfl_sync(ALL_LANES, score, lane * lanes & 31));
    int better = 0;
#pragma unroll 4
    for (int g = 0; g < groups; g++) {
        const uint32_t other = __shfl_sync(ALL_LANES, rank, g);
        better += other > rank || (other == rank && g < lane);
    }
    return __ballot_sync(ALL_LANES, lane < groups && better < p.topk_group);
}

/* Turns keys[0 .. n_group) into the scores of expert groups. The scores written so far lie before the keys of the
 * groups still to be scored. */
__device__ inline void score_groups(const nk_route_problem &p, float *keys)
{
    const int groups = (int)p.n_group, lanes = lanes_of_group(groups), mine = (threadIdx.x & 31) / lanes;
    for (int g0 = 0; g0 < groups; g0 += 32 / lanes) {
        const float score = score_of(p, keys, g0 + mine, lanes);
        __syncwarp();
        if (threadIdx.x % lanes == 0 && g0 + mine < groups) keys[g0 + mine] = score;
        __syncwarp();
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* One token                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Ranks the experts of the groups that were selected: `groups` has a bit for each group, 32 a lane. */
__device__ inline void rank_experts(const nk_route_problem &p, const scratch_t &s, uint32_t groups)
{
    const int lane = threadIdx.x & 31, size = (int)(p.n / p.n_group);
#pragma unroll 1
    for (int n0 = 0; n0 < p.n; n0 += 32) { /* all lanes, for the shuffle */
        const int n = n0 + lane, group = min(n, (int)p.n - 1) / size;
        const bool allowed = __shfl_sync(ALL_LANES, groups, group / 32) >> group % 32 & 1;
        if (n < p.n) s.ranks[n] = allowed ? rank_of(key_of(p, s.logits[n], n)) : RANK_TAKEN;
    }
}

/* The expert that is selection `lane`, of more groups than a lane each: first groups are selected, then experts in
 * them. */
__device__ inline int select_of_many_groups(const nk_route_problem &p, const scratch_t &s)
{
    const int lane = threadIdx.x & 31, n_group = (int)p.n_group;
    selection chosen = {0, 0};
#pragma unroll 1
    for (int n = lane; n < p.n; n += 32)
        s.keys[n] = key_of(p, s.logits[n], n);
    __syncwarp();
#pragma unroll 1
    for (int phase = 0; phase < 2; phase++) {
        const bool of_groups = phase == 0;
        const int n = of_groups ? n_group : (int)p.n;
        if (of_groups) {
            score_groups(p, s.keys);
            for (int g = lane; g < n_group; g += 32)
                s.ranks[g] = rank_of(s.keys[g]);
        } else {
            rank_experts(p, s, chosen.among);
        }
        __syncwarp();
        chosen = with_fours(n, [&](auto of) {
            uint32_t ranks[4 * of.J];
#pragma unroll
            for (int v = 0; v < 4 * of.J; v++)
                ranks[v] = index_of(v) < n ? s.ranks[index_of(v)] : RANK_TAKEN;
            return select_in_rounds<of.J>(ranks, (int)(of_groups ? p.topk_group : p.top_k));
        });
        __syncwarp();
    }
    return chosen.winner;
}

/* The expert that is selection `lane`, of few groups or of one. Keys stay in registers; those that are not the logits
 * also go to the scratch, where groups are scored. */
template <int J> __device__ inline int select_of_few_groups(const nk_route_problem &p, const scratch_t &s)
{
    const bool grouped = p.topk_group < p.n_group;
    const int last = (int)p.n - 1;
    float keys[4 * J];
#pragma unroll
    for (int v = 0; v < 4 * J; v += 4) {
        const float4 four = *(const float4 *)&s.logits[index_of(v)];
        keys[v] = four.x, keys[v + 1] = four.y, keys[v + 2] = four.z, keys[v + 3] = four.w;
    }
    if (p.correction_bias) {
        constexpr int SOME = J < 2 || J > 4 ? 4 : 8; /* as many at once as registers allow */
#pragma unroll
        for (int v = 0; v < 4 * J; v += SOME) {
            float bias[SOME], scores[SOME];
#pragma unroll
            for (int i = 0; i < SOME; i++) {
                bias[i] = p.correction_bias[min(index_of(v + i), last) * p.correction_bias_stride];
                scores[i] = keys[v + i];
            }
            sigmoids(scores);
#pragma unroll
            for (int i = 0; i < SOME; i++)
                keys[v + i] = __fadd_rn(scores[i], bias[i]);
        }
#pragma unroll
        for (int v = 0; v < 4 * J; v += 4)
            *(float4 *)&s.keys[index_of(v)] = make_float4(keys[v], keys[v + 1], keys[v + 2], keys[v + 3]);
        __syncwarp();
    }
    const uint32_t groups = grouped ? select_groups(p, p.correction_bias ? s.keys : s.logits) : 1;
    const int inverse = grouped ? (1 << 20) / (int)(p.n / p.n_group) + 1 : 0; /* of a group's size, in 2^-20 */
    uint32_t ranks[4 * J];
#pragma unroll
    for (int v = 0; v < 4 * J; v++) {
        const int n = index_of(v);
        const uint32_t allowed = groups >> (n * inverse >> 20 & 31) & (uint32_t)(n <= last);
        ranks[v] = rank_of(keys[v]) & (0 - allowed % 2);
    }
    if constexpr (J > 4) /* candidates would take more registers */
        return select_in_rounds<J>(ranks, (int)p.top_k).winner;
    else
        return select_few<J>(ranks, (int)p.top_k, s.ranks);
}

/* The expert that is selection `lane`. */
__device__ inline int select_expert(const nk_route_problem &p, const scratch_t &s)
{
    if (p.topk_group < p.n_group && p.n_group > FEW_GROUPS) return select_of_many_groups(p, s);
    return with_fours((int)p.n, [&](auto of) { return select_of_few_groups<of.J>(p, s); });
}

__device__ inline float warp_sum(float v)
{
#pragma unroll
    for (int distance = 16; distance; distance /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, distance);
    return v;
}

/* Of the first k lanes, where others have 0; those get it. */
__device__ inline float sum_of_first(float v, int k)
{
#pragma unroll
    for (int distance = 16; distance; distance /= 2) {
        if (distance < k) v += __shfl_xor_sync(ALL_LANES, v, distance);
    }
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
        const float sum = sum_of_first(there ? weight : 0, (int)p.top_k);
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
        /* the first selection has the largest logit, unless keys are not the logits */
        const float largest =
            p.correction_bias ? warp_max(there ? logit : -INFINITY) : __shfl_sync(ALL_LANES, logit, 0);
        const float part = expf(logit - largest);
        weight = part / sum_of_first(there ? part : 0, (int)p.top_k);
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
__device__ inline void route_token(const nk_route_problem &p, int64_t m, const scratch_t &s)
{
    const int lane = threadIdx.x & 31;
    for (int n = lane; p.returns_logits && n < p.n; n += 32)
        *(float *)output_at(p.logits_out, 0, m, n) = s.logits[n];
    const int expert = select_expert(p, s);
    const float weight = weight_of(p, s.logits, s.logits[expert]);
    if (lane < p.top_k) p.ids[m * p.ids_row_stride + lane * p.ids_col_stride] = expert;
    if (p.dense)
        store_dense(p, m, s.logits, expert, weight);
    else if (lane < p.top_k)
        store_float(output_at(p.weights, 0, m, lane), p.weights.dtype, weight);
}

#endif
