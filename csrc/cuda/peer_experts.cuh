/* Experts on several GPUs: tokens to where their experts are (peer_dispatch.cuh), and what these make of them back
 * (peer_combine.cuh).
 *
 * Rank r has tokens t of its own, at most `room`, and a range of the experts. Dispatch: rank d gets, of every token
 * (s, t), the experts that are its own, by their numbers there or as -1, and the token itself if there are any.
 * Combine:
 *     out[t,h] = convert(sum + residual[t,h]), sum = fl(sum + fl(weights[t,j] product(t,j)[h])) for j = 0 .. k-1
 * from +0 on, where product(t,j) is what the expert's rank has in row row_of[(s room + t) k + j]. That is what combine
 * computes on one GPU of all experts, to the bit.
 *
 * Roles: all threads alike. CTA i of a rank sends what CTA i of the others waits for, so there is no barrier of the
 * grid. A unit of work, as a piece of a token, is the same CTA's on all ranks. */
#ifndef NK_PEER_EXPERTS_CUH
#define NK_PEER_EXPERTS_CUH

#include "peer_store.cuh"
#include "peer_wait.cuh"

/* Experts of `first` .. `first` + `count` - 1 are the rank's. */
typedef struct expert_range {
    int32_t first, count;
} expert_range;

__device__ inline expert_range experts_of(const nk_peer_experts &e, int rank)
{
    return {rank * e.each + min(rank, e.more), e.each + (rank < e.more)};
}

/* -1: nobody's. */
__device__ inline int rank_of_expert(int32_t expert, const nk_peer_experts &e)
{
    const int32_t longer = e.more * (e.each + 1); /* experts of ranks that have one more */
    if (nk_expert_of(expert, e.all) < 0) return -1;
    return expert < longer ? expert / (e.each + 1) : e.more + (expert - longer) / e.each;
}

/* A part of token t. */
typedef struct peer_unit {
    int64_t t;
    int32_t part;
} peer_unit;

__device__ inline peer_unit first_unit(const nk_peer_units &u)
{
    return {(int)blockIdx.x / u.parts, (int)blockIdx.x % u.parts};
}

__device__ inline peer_unit unit_after(const peer_unit &unit, const nk_peer_units &u)
{
    const int32_t part = unit.part + u.parts_on;
    return {unit.t + u.tokens_on + (part >= u.parts), part >= u.parts ? part - u.parts : part};
}

#endif
