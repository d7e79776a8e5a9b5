/* One thread routes one token: its logits are a lane of tensor memory, which it reads once for each pass, 16 experts at
 * a time.
 *
 * It keeps the best experts so far, ordered. Among each 16 it marks those that are better than the last one kept, then
 * inserts these: an insertion is long, and lanes that insert at the same time share its instructions, whichever experts
 * they have. Experts come in ascending order, so that among equal ranks the lower one stays in front. With expert
 * groups a pass before finds each group's score; a softmax over all experts takes two passes after. If keys are not the
 * logits, a first pass leaves them in shared memory, and a last one finds the logits of those selected. Ranks are those
 * of cuda/route_rank.cuh. */
#ifndef NK_SM100_ROUTE_THREAD_CUH
#define NK_SM100_ROUTE_THREAD_CUH

#include "cuda/route_topk.cuh"
#include "sm100_route_mainloop.cuh"

#define MAX_TOP_K SM100_ROUTE_THREAD_MAX_TOP_K

/* What a thread has of its token. */
typedef struct token_logits {
    const nk_route_problem &p;
    uint32_t tmem;    /* of its warp's lanes */
    int windows;      /* of 16 experts */
    float *keys;      /* of all experts, in shared memory, if they are not the logits */
    float *window;    /* of 16 experts, in shared memory */
    uint32_t *scores; /* of expert groups, in the same bytes before: SM100_ROUTE_THREAD_WORDS */
} token_logits;

/* Logits of experts n .. n + 15; any numbers for those that do not exist. */
__device__ inline void load_16_logits(const token_logits &of, int n, float (&v)[16])
{
    load_16_sums(of.tmem, n, v);
#pragma unroll
    for (int i = 0; i < 16; i++)
        v[i] = __fmul_rn(alpha_at(of.p.alpha, min(n + i, (int)of.p.n - 1)), v[i]);
}

/* To shared memory. */
template <int N> __device__ inline void store_window(float *to, const float (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N; i += 4)
        *(float4 *)&to[i] = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
}

/* From shared memory. */
template <int N> __device__ inline void load_window(const float *from, float (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 four = *(const float4 *)&from[i];
        v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
    }
}

/* v = f(v) of each, by one copy of f's code: registers have no index, so the window holds them meanwhile. */
template <int N, typename F> __device__ inline void for_each_in_window(const token_logits &of, float (&v)[N], F f)
{
    store_window(of.window, v);
#pragma unroll 1
    for (int i = 0; i < N; i++)
        of.window[i] = f(of.window[i]);
    load_window(of.window, v);
}

/* Calls f(logit) for all experts. */
template <typename F> __device__ inline void for_each_logit(const token_logits &of, F f)
{
#pragma unroll 1
    for (int n = 0; n < 16 * of.windows; n += 16) {
        float v[16];
        load_16_logits(of, n, v);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            if (n + i < of.p.n) f(v[i]);
        }
    }
}

/* What a softmax over all experts takes of the others. */
__device__ inline softmax_terms softmax_by_thread(const token_logits &of)
{
    softmax_terms all = {-INFINITY, 0};
    for_each_logit(of, [&](float logit) { all.largest = fmaxf(all.largest, logit); }); /* leaves NaN out */
    for_each_logit(of, [&](float logit) { all.sum += expf(logit - all.largest); });
    return all;
}

/* Keys of all experts, if there is a correction bias. */
__device__ inline void make_keys(const token_logits &of)
{
    const nk_route_problem &p = of.p;
    softmax_terms all = {0, 1};
    if (p.score == NK_SOFTMAX_TOPK) all = softmax_by_thread(of);
#pragma unroll 1
    for (int n = 0; n < 16 * of.windows; n += 16) {
        float v[16];
        load_16_logits(of, n, v);
        if (p.score == NK_SIGMOID)
            sigmoids(v);
        else
            for_each_in_window(of, v, [&](float logit) { return score_of_logit(p.score, logit, all); });
#pragma unroll
        for (int i = 0; i < 16; i++)
            v[i] = __fadd_rn(v[i], p.correction_bias[min(n + i, (int)p.n - 1) * p.correction_bias_stride]);
        store_window(of.keys + n, v);
    }
}

__device__ inline void load_keys(const token_logits &of, int n, float (&v)[16])
{
    if (of.p.correction_bias)
        load_window(of.keys + n, v);
    else
        load_16_logits(of, n, v);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Selection                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A bit for each expert group that experts are selected from; all bits if there is one group. */
__device__ inline uint32_t select_groups_by_thread(const token_logits &of)
{
    const nk_route_problem &p = of.p;
    const int groups = (int)p.n_group, size = (int)p.n / groups;
    if (p.topk_group >= groups) return ~0u;
    int group = 0, end = size;
    top_two two = {RANK_TAKEN, RANK_TAKEN};
#pragma unroll 1
    for (int n = 0; n < 16 * of.windows; n += 16) {
        float keys[16];
        load_keys(of, n, keys);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            add_to(two, rank_of(keys[i]));
            if (n + i + 1 != end || group == groups) continue;
            of.scores[group] = rank_of(score_of(p, two));
            two = {RANK_TAKEN, RANK_TAKEN};
            group++, end += size;
        }
    }
    uint32_t kept = 0;
#pragma unroll 1
    for (int g = 0; g < groups; g++) {
        const uint32_t mine = of.scores[g];
        int better = 0;
#pragma unroll 4
        for (int i = 0; i < groups; i++) {
            const uint32_t other = of.scores[i];
            better += other > mine || (other == mine && i < g);
        }
        kept |= (uint32_t)(better < p.topk_group) << g;
    }
    return kept;
}

/* The best so far are the last `count` of MAX_TOP_K; those in front of them rank above everything. */
typedef struct best_experts {
    uint32_t ranks[MAX_TOP_K];
    int experts[MAX_TOP_K];
} best_experts;

/* Without branches: all positions at once. Changes nothing if none of them is worse. */
__device__ inline void insert(best_experts &best, uint32_t rank, int expert)
{
#pragma unroll
    for (int i = MAX_TOP_K - 1; i >= 0; i--) {
        const bool here = rank > best.ranks[i], above = i > 0 && rank > best.ranks[i > 0 ? i - 1 : 0];
        best.ranks[i] = above ? best.ranks[i > 0 ? i - 1 : 0] : here ? rank : best.ranks[i];
        best.experts[i] = above ? best.experts[i > 0 ? i - 1 : 0] : here ? expert : best.experts[i];
    }
}

/* A bit for each of experts n .. n + 15 that may be selected, the uppermost one first; n rises, and is the same in all
 * lanes. */
struct allowed_experts {
    uint32_t groups;
    int experts, size, group, end;
    bool grouped;

    __device__ uint32_t among(int n)
    {
        uint32_t bits = ~0u << (32 - min(experts - n, 16));
        if (!grouped) return bits;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            bits &= ~((~groups >> (group & 31) & 1) << (31 - i));
            const bool ends = n + i + 1 == end;
            group += ends, end += ends ? size : 0;
        }
        return bits;
    }
};

__device__ inline best_experts select_by_thread(const token_logits &of)
{
    const nk_route_problem &p = of.p;
    const int size = (int)p.n / (int)p.n_group;
    allowed_experts allowed = {select_groups_by_thread(of), (int)p.n, size, 0, size, p.topk_group < p.n_group};
    best_experts best;
#pragma unroll
    for (int i = 0; i < MAX_TOP_K; i++)
        best.ranks[i] = i < MAX_TOP_K - p.top_k ? ~0u : RANK_TAKEN, best.experts[i] = 0;
#pragma unroll 1
    for (int n = 0; n < 16 * of.windows; n += 16) {
        float v[16];
        load_keys(of, n, v);
        const float *keys = p.correction_bias ? of.keys + n : of.window;
        if (!p.correction_bias) store_window(of.window, v);
        const float last = key_of_rank(best.ranks[MAX_TOP_K - 1]); /* NaN if anything is better */
        uint32_t better = 0;
#pragma unroll
        for (int i = 0; i < 16; i++)
            better |= (uint32_t)!(v[i] <= last) << (31 - i); /* NaN, too: its insertion changes nothing */
        better &= allowed.among(n);
#pragma unroll 1
        while (better) {
            const int i = __clz((int)better);
            insert(best, rank_of(keys[i]), n + i);
            better ^= 0x80000000u >> i;
        }
    }
    return best;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Weights                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Of all selections. */
__device__ inline void selected_logits(const token_logits &of, const best_experts &best, float (&logits)[MAX_TOP_K])
{
#pragma unroll
    for (int i = 0; i < MAX_TOP_K; i++)
        logits[i] = key_of_rank(best.ranks[i]);
#pragma unroll 1
    for (int n = 0; of.p.correction_bias && n < 16 * of.windows; n += 16) {
        float v[16];
        load_16_logits(of, n, v);
        store_window(of.window, v);
#pragma unroll
        for (int i = 0; i < MAX_TOP_K; i++) {
            if (best.experts[i] / 16 == n / 16) logits[i] = of.window[best.experts[i] % 16];
        }
    }
}

/* As weight_of() of cuda/route_topk.cuh, for all selections. Entries in front of them get any numbers. */
__device__ inline void weights_by_thread(const token_logits &of, const best_experts &best, float (&weights)[MAX_TOP_K])
{
    const nk_route_problem &p = of.p;
    const int first = MAX_TOP_K - (int)p.top_k;
    const bool of_all = p.score == NK_SOFTMAX_TOPK && !p.renormalize;
    const bool alone = p.score == NK_SIGMOID || p.score == NK_SQRT_SOFTPLUS || p.score == NK_LOGITS;
    float logits[MAX_TOP_K];
    softmax_terms over = {-INFINITY, 0};
    selected_logits(of, best, logits);
    if (p.score == NK_SQRT_SOFTPLUS) for_each_in_window(of, logits, [](float logit) { return sqrt_softplus(logit); });
    if (of_all) over = softmax_by_thread(of);
    if (!of_all && p.correction_bias) { /* else keys are the logits, and the first is the largest */
#pragma unroll
        for (int i = 0; i < MAX_TOP_K; i++)
            over.largest = i < first ? over.largest : fmaxf(over.largest, logits[i]);
    }
#pragma unroll
    for (int i = 0; i < MAX_TOP_K; i++) {
        if (i == first && !of_all && !p.correction_bias) over.largest = logits[i];
        weights[i] = p.score == NK_SIGMOID ? sigmoid(logits[i]) : alone ? logits[i] : expf(logits[i] - over.largest);
        if (i < first) weights[i] = 0;
        if (!of_all) over.sum += weights[i];
    }
    if (alone) over.sum = p.renormalize ? over.sum + 1e-20f : 1; /* all-zero scores give zeros */
#pragma unroll
    for (int i = 0; i < MAX_TOP_K; i++)
        weights[i] = __fmul_rn(weights[i] / over.sum, p.scaling_factor);
    if (!p.per_expert_scale) return;
#pragma unroll
    for (int i = 0; i < MAX_TOP_K; i++)
        weights[i] = __fmul_rn(weights[i], p.per_expert_scale[best.experts[i] * p.per_expert_scale_stride]);
}

/* Zeros to all that the warp's tokens have of a dense output, by whole rows; `m` is its first token. */
__device__ inline void clear_rows(const nk_route_problem &p, int64_t m)
{
    const int lane = threadIdx.x % 32, rows = (int)min(p.m - m, (int64_t)32);
#pragma unroll 1
    for (int row = 0; row < rows; row++) {
        for (int n = lane; n < p.n; n += 32)
            store_float(output_at(p.weights, 0, m + row, n), p.weights.dtype, 0);
    }
    __syncwarp();
}

/* Whole warps; `m` is this thread's token, which may not exist. */
__device__ inline void route_by_thread(const token_logits &of, int64_t m)
{
    const nk_route_problem &p = of.p;
    float weights[MAX_TOP_K];
    if (p.correction_bias) make_keys(of);
    const best_experts best = select_by_thread(of);
    weights_by_thread(of, best, weights);
    if (p.dense) clear_rows(p, m - threadIdx.x % 32);
    if (m >= p.m) return;
#pragma unroll
    for (int i = 0; i < MAX_TOP_K; i++) {
        const int64_t j = i - (MAX_TOP_K - p.top_k);
        if (j < 0) continue;
        p.ids[m * p.ids_row_stride + j * p.ids_col_stride] = best.experts[i];
        store_float(output_at(p.weights, 0, m, p.dense ? best.experts[i] : j), p.weights.dtype, weights[i]);
    }
}

#undef MAX_TOP_K

#endif
