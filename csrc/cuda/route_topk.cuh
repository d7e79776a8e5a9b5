/* One warp routes one token: it ranks the keys that its logits make, selects the best, weighs them, and writes.
 *
 * Lane i owns the experts 128 j + 4 i .. + 3 for j < J. A rank is an integer that orders as its key does. Let T be the
 * k-th largest of the lanes' best ranks: each of the k best experts ranks T or higher. The few experts that do are
 * candidates, one a lane; the number of better candidates is a candidate's selection. If more than 32 experts rank T or
 * higher, since ranks are equal, each of k rounds selects one: a lane finds its best rank; two warp reductions find the
 * best of all and the lowest expert that has it. Of up to 32 experts all are candidates. Lane i keeps selection i.
 *
 * A token's time is the number of instructions on its way, about five clocks each, since nothing else runs beside. */
#ifndef NK_ROUTE_TOPK_CUH
#define NK_ROUTE_TOPK_CUH

#include "route_groups.cuh"

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
    uint64_t of[32]; /* better ones are larger; 0: there is none */
    uint32_t winners[32];
} candidates_t;

/* Orders experts as a selection does: by rank, and of equal ranks the lower expert first. */
__device__ inline uint64_t candidate_of(uint32_t rank, int expert) { return (uint64_t)rank << 32 | (uint32_t)~expert; }

/* How many of the first `count` candidates, rounded up to eight, are better: eight are loaded at once. */
__device__ inline int better_than(const uint64_t *candidates, int count, uint64_t mine)
{
    int better = 0;
#pragma unroll 1
    for (int i = 0; i < count; i += 8) {
        ulonglong2 two[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            two[j] = *(const ulonglong2 *)&candidates[i + 2 * j];
#pragma unroll
        for (int j = 0; j < 4; j++)
            better += (two[j].x > mine) + (two[j].y > mine);
    }
    return better;
}

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
    c.of[lane] = 0;
    __syncwarp();
    int found = 0;
#pragma unroll
    for (int v = 0; v < 4 * J; v++) {
        const uint32_t those = __ballot_sync(ALL_LANES, ranks[v] >= threshold);
        const int at = found + __popc(those & ((1u << lane) - 1));
        if (ranks[v] >= threshold && at < 32) c.of[at] = candidate_of(ranks[v], index_of(v));
        found += __popc(those);
    }
    __syncwarp();
    if (found > 32) return select_in_rounds<J>(ranks, count).winner;
    const uint64_t mine = c.of[lane];
    const int better = better_than(c.of, found, mine);
    if (mine && better < count) c.winners[better] = ~(uint32_t)mine;
    __syncwarp();
    return lane < count ? c.winners[lane] : 0;
}

/* The same if a lane has one expert; `rank` is RANK_TAKEN in lanes without one. */
__device__ inline int select_of_lanes(uint32_t rank, int experts, int count, uint32_t *memory)
{
    const int lane = threadIdx.x & 31;
    candidates_t &c = *(candidates_t *)memory;
    const uint64_t mine = candidate_of(rank, lane);
    c.of[lane] = mine;
    __syncwarp();
    const int better = better_than(c.of, experts, mine);
    if (better < count) c.winners[better] = lane;
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
/* One token                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Ranks the experts of the groups that were selected, in place of their keys: `groups` has a bit for each group, 32 a
 * lane. */
__device__ inline void rank_experts(const nk_route_problem &p, const scratch_t &s, uint32_t groups)
{
    const int lane = threadIdx.x & 31, size = (int)(p.n / p.n_group);
#pragma unroll 1
    for (int n0 = 0; n0 < p.n; n0 += 32) { /* all lanes, for the shuffle */
        const int n = n0 + lane, group = min(n, (int)p.n - 1) / size;
        const bool allowed = __shfl_sync(ALL_LANES, groups, group / 32) >> group % 32 & 1;
        if (n < p.n) s.ranks[n] = allowed ? rank_of(s.keys[n]) : RANK_TAKEN;
    }
}

/* The expert that is selection `lane`, of more groups than a lane each: first groups are selected, then experts in
 * them. */
template <bool PLAIN> __device__ inline int select_of_many_groups(const nk_route_problem &p, const scratch_t &s)
{
    const int lane = threadIdx.x & 31, n_group = (int)p.n_group;
    selection chosen = {0, 0};
#pragma unroll 1
    for (int phase = 0; phase < 2; phase++) {
        const bool of_groups = phase == 0;
        const int n = of_groups ? n_group : (int)p.n;
        make_keys<PLAIN>(p, s); /* twice, since scores and ranks take their place */
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

/* The expert that is selection `lane`, of few groups or of one. `from` is the keys, or logits that keys are made of.
 * Keys stay in registers. If groups are no whole lanes, they are scored in the scratch, which has the logits already.
 */
template <int J>
__device__ inline int select_of_few_groups(const nk_route_problem &p, const scratch_t &s, const float *from)
{
    const bool grouped = p.topk_group < p.n_group;
    const int last = (int)p.n - 1, size = grouped ? (int)(p.n / p.n_group) : 128;
    const bool in_lanes = J <= 2 && groups_are_lanes(size); /* more would be much code that is seldom wanted */
    float keys[4 * J];
#pragma unroll
    for (int v = 0; v < 4 * J; v += 4) {
        const float4 four = *(const float4 *)&from[index_of(v)];
        keys[v] = four.x, keys[v + 1] = four.y, keys[v + 2] = four.z, keys[v + 3] = four.w;
    }
    if (p.correction_bias && from == s.logits) {
        constexpr int FOURS = J < 2 || J > 4 ? 1 : 2; /* as many at once as registers allow */
#pragma unroll
        for (int v = 0; v < 4 * J; v += 4 * FOURS)
            add_biases<FOURS>(p, index_of(v), &keys[v]);
    }
    uint32_t ranks[4 * J];
#pragma unroll
    for (int v = 0; v < 4 * J; v++)
        ranks[v] = index_of(v) <= last ? rank_of(keys[v]) : RANK_TAKEN;
    if constexpr (J <= 2) {
        if (grouped && in_lanes) drop_groups<J>(p, size, ranks);
    }
    if (grouped && !in_lanes) {
        if (p.correction_bias) {
#pragma unroll
            for (int v = 0; v < 4 * J; v += 4)
                *(float4 *)&s.keys[index_of(v)] = make_float4(keys[v], keys[v + 1], keys[v + 2], keys[v + 3]);
            __syncwarp();
        }
        const uint32_t groups = select_groups(p, p.correction_bias ? s.keys : s.logits);
        const int inverse = (1 << 20) / size + 1; /* in 2^-20 */
#pragma unroll
        for (int v = 0; v < 4 * J; v++)
            ranks[v] &= 0 - (groups >> (index_of(v) * inverse >> 20 & 31) & 1);
    }
    if constexpr (J > 4) /* candidates would take more registers */
        return select_in_rounds<J>(ranks, (int)p.top_k).winner;
    else
        return select_few<J>(ranks, (int)p.top_k, s.ranks);
}

/* The expert that is selection `lane`, if a lane has at most one expert. */
__device__ inline int select_of_few_experts(const nk_route_problem &p, const scratch_t &s, const float *from)
{
    const int lane = threadIdx.x & 31;
    uint32_t rank = RANK_TAKEN;
    if (lane < p.n) rank = rank_of(from == s.logits ? key_of_logit(p, from[lane], lane) : from[lane]);
    if (from != s.logits) __syncwarp(); /* candidates take the keys' place */
    return select_of_lanes(rank, (int)p.n, (int)p.top_k, s.ranks);
}

/* The expert that is selection `lane`. */
template <bool PLAIN> __device__ inline int select_expert(const nk_route_problem &p, const scratch_t &s)
{
    const bool grouped = p.topk_group < p.n_group;
    if (grouped && p.n_group > FEW_GROUPS) return select_of_many_groups<PLAIN>(p, s);
    const float *from = s.logits;
    if (!PLAIN && p.correction_bias && p.score != NK_SIGMOID) /* biased sigmoids stay in registers */
        make_keys<PLAIN>(p, s), from = s.keys;
    if (!grouped && p.n <= 32) return select_of_few_experts(p, s, from);
    return with_fours((int)p.n, [&](auto of) { return select_of_few_groups<of.J>(p, s, from); });
}

/* The sum of the first k lanes, which get it; the other lanes hold 0. */
__device__ inline float sum_of_first(float v, int k) { return k <= 8 ? sum_of_lanes<8>(v) : sum_of_lanes<32>(v); }

/* The weight of selection `lane`, whose logit is `logit`. Renormalising a softmax over all experts cancels its
 * denominator: what is left is the softmax over the selected. */
template <bool PLAIN> __device__ inline float weight_of(const nk_route_problem &p, const float *logits, float logit)
{
    const bool there = (threadIdx.x & 31) < p.top_k;
    float part, sum = 1; /* 1 in lanes behind: a quotient that is no number takes long */
    if (!PLAIN && p.score == NK_LOGITS) {
        part = logit;
    } else if (p.score == NK_SIGMOID || (!PLAIN && p.score == NK_SQRT_SOFTPLUS)) {
        part = PLAIN || p.score == NK_SIGMOID ? sigmoid(logit) : sqrt_softplus(logit);
        if (p.renormalize) sum = sum_of_first(there ? part : 0, (int)p.top_k) + 1e-20f; /* all-zero scores give zeros */
    } else if (p.score == NK_SOFTMAX_TOPK && !p.renormalize) {
        const softmax_terms all = softmax_of_all(logits, (int)p.n);
        part = expf(logit - all.largest);
        sum = all.sum;
    } else {
        /* the first selection has the largest logit, unless keys are not the logits */
        const float largest =
            !PLAIN && p.correction_bias ? warp_max(there ? logit : -INFINITY) : __shfl_sync(ALL_LANES, logit, 0);
        part = expf(logit - largest);
        sum = sum_of_first(there ? part : 0, (int)p.top_k);
    }
    const float weight = (there ? part : 1) / (there ? sum : 1);
    return __fmul_rn(weight, p.scaling_factor);
}

/* Writes a row of all experts, zeros but for the selected. It uses the logits' memory, which is free by now. */
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

/* Routes one token, by a warp. Returns the expert that is selection `lane`. PLAIN: see cuda_route_is_plain(). */
template <bool PLAIN> __device__ inline int route_token(const nk_route_problem &p, int64_t m, const scratch_t &s)
{
    const int lane = threadIdx.x & 31;
    for (int n = lane; p.returns_logits && n < p.n; n += 32)
        *(float *)output_at(p.logits_out, 0, m, n) = s.logits[n];
    const int expert = select_expert<PLAIN>(p, s);
    float weight = weight_of<PLAIN>(p, s.logits, s.logits[expert]);
    if (!PLAIN && p.per_expert_scale)
        weight = __fmul_rn(weight, p.per_expert_scale[expert * p.per_expert_scale_stride]);
    if (lane < p.top_k) p.ids[m * p.ids_row_stride + lane * p.ids_col_stride] = expert;
    if (p.dense)
        store_dense(p, m, s.logits, expert, weight);
    else if (lane < p.top_k)
        store_float(output_at(p.weights, 0, m, lane), p.weights.dtype, weight);
    return expert;
}

/* Turns in which the CTAs of a token tile route its tokens, a warp a token: Q says how many tokens a CTA has in one. */
template <typename Q> __device__ inline int turns_of(const Q &q, int tokens)
{
    return (tokens + q.turn_tokens - 1) / q.turn_tokens;
}

#endif
