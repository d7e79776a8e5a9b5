/* Scores of expert groups, and which of them a router's warp keeps. */
#ifndef NK_ROUTE_GROUPS_CUH
#define NK_ROUTE_GROUPS_CUH

#include "route_rank.cuh"

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

/* The score of a group with these two best ranks. */
__device__ inline float score_of(const nk_route_problem &p, const top_two &two)
{
    const float first = key_of_rank(two.first), second = key_of_rank(two.second);
    return p.correction_bias && two.second > RANK_NAN ? __fadd_rn(first, second) : first;
}

/* The score of group g, by `lanes` neighbouring lanes; if there is no such group, anything. */
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
    return score_of(p, two);
}

/* Whether groups are whole lanes, of four experts each, of the lanes that have neighbours. */
__device__ inline bool groups_are_lanes(int size) { return size % 4 == 0 && size <= 128 && !(size & (size - 1)); }

/* Takes the experts of groups out that are not selected; ranks are those of select_of_few_groups(). */
template <int J> __device__ inline void drop_groups(const nk_route_problem &p, int size, uint32_t (&ranks)[4 * J])
{
    const int lanes = size / 4, in_row = 32 / lanes, mine = (threadIdx.x & 31) / lanes; /* a row: 128 experts */
    top_two two[J];
#pragma unroll
    for (int j = 0; j < J; j++) {
        two[j] = {RANK_TAKEN, RANK_TAKEN};
#pragma unroll
        for (int i = 0; i < 4; i++)
            add_to(two[j], ranks[4 * j + i]);
    }
#pragma unroll 1
    for (int distance = 1; distance < lanes; distance *= 2) {
#pragma unroll
        for (int j = 0; j < J; j++) {
            const uint32_t first = __shfl_xor_sync(ALL_LANES, two[j].first, distance);
            const uint32_t second = __shfl_xor_sync(ALL_LANES, two[j].second, distance);
            add_to(two[j], first);
            add_to(two[j], second);
        }
    }
    uint32_t scores[J];
    int better[J];
#pragma unroll
    for (int j = 0; j < J; j++) {
        scores[j] = rank_of(score_of(p, two[j]));
        better[j] = 0;
    }
#pragma unroll
    for (int row = 0; row < J; row++) {
        const int count = min(in_row, (int)p.n_group - row * in_row);
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            const uint32_t other = __shfl_sync(ALL_LANES, scores[row], i * lanes);
#pragma unroll
            for (int j = 0; j < J; j++)
                better[j] += other > scores[j] || (other == scores[j] && (row < j || (row == j && i < mine)));
        }
    }
#pragma unroll
    for (int v = 0; v < 4 * J; v++)
        ranks[v] = better[v / 4] < p.topk_group ? ranks[v] : RANK_TAKEN;
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

#endif
