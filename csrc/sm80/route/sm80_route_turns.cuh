/* What follows the sums in every kernel of the router: a grid barrier, then CTAs route tokens in turns, and sort. */
#ifndef NK_SM80_ROUTE_TURNS_CUH
#define NK_SM80_ROUTE_TURNS_CUH

#include "cuda/grid_barrier.cuh"
#include "cuda/route_logits.cuh"
#include "cuda/route_sort.cuh"
#include "sm80_route_config.h"

static_assert(SM80_ROUTE_WARPS == ROUTE_SORT_WARPS, "the warps that sort");
static_assert(SM80_ROUTE_TURN_BYTES >= sizeof(sort_t), "the host asks for what is used");

__device__ inline grid_barrier tile_barrier(const sm80_route_params &q, int turns)
{
    return {q.counters + (int64_t)blockIdx.x * GRID_BARRIER_COUNTERS,
            q.base,
            q.ctas,
            min(q.waiters, turns),
            q.timeout,
            SM80_ROUTE_MOST_CTAS + 1};
}

__device__ inline grid_barrier launch_barrier(const sm80_route_params &q)
{
    return {q.counters + (int64_t)q.token_tiles * GRID_BARRIER_COUNTERS,
            q.base,
            q.leavers,
            q.sorters,
            q.timeout,
            1ull << (32 - __clz(q.leavers))};
}

/* Routes tokens together with the other CTAs of the token tile. Whether this CTA is one of those that may sort. */
template <bool GIVEN>
__device__ inline bool route_in_turns(const nk_route_problem &p, const sm80_route_params &q, int64_t m0, int tokens,
                                      void *smem)
{
    __shared__ int range, ranges;
    const int turns = turns_of(q, tokens), warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        const work_range mine = arrive_and_wait(tile_barrier(q, turns));
        range = mine.range < mine.ranges ? mine.range : turns;
        ranges = mine.ranges;
    }
    __syncthreads();
    if (ranges == 0) return false;
    for (int turn = range; turn < turns; turn += ranges) {
        const int token = turn * q.turn_tokens, count = min(q.turn_tokens, tokens - token);
        load_logits_of_tokens<GIVEN, SM80_ROUTE_THREADS>(p, q, m0 + token, count, smem, NK_MAX_EXPERTS);
        __syncthreads();
        if (warp < count) route_token<false>(p, m0 + token + warp, scratch_at(smem, warp, NK_MAX_EXPERTS));
        __syncthreads();
    }
    if (threadIdx.x == 0) leave_grid_barrier(tile_barrier(q, turns));
    return p.sorts;
}

/* Sorts together with the other CTAs of the launch. */
__device__ inline void sort_rows(const nk_route_problem &p, const sm80_route_params &q, void *smem)
{
    __shared__ int range, ranges;
    __syncthreads();
    if (threadIdx.x == 0) {
        const work_range mine = arrive_and_wait(launch_barrier(q));
        range = mine.range;
        ranges = mine.ranges;
    }
    __syncthreads();
    if (range < ranges) sort_range(p, *(sort_t *)smem, range, ranges);
    if (threadIdx.x == 0 && ranges > 0) leave_grid_barrier(launch_barrier(q));
}

/* The tokens of this CTA's tile; `count` is 0 if the launch has none, only an empty permutation to make. */
typedef struct tile_token_range {
    int64_t first;
    int count;
} tile_token_range;

/* Before the sums: long before CTAs arrive at the barrier. */
__device__ inline tile_token_range route_prologue(const nk_route_problem &p, const sm80_route_params &q, int tile)
{
    const int64_t first = (int64_t)blockIdx.x * tile;
    const tile_token_range at = {first, q.token_tiles == 0 ? 0 : p.m - first < tile ? (int)(p.m - first) : tile};
    if (at.count == 0) return at;
    if (q.ctas > 1 && threadIdx.x < GRID_BARRIER_COUNTERS)
        init_grid_barrier(tile_barrier(q, turns_of(q, at.count)), threadIdx.x);
    else if (p.sorts && q.leavers > 1 && threadIdx.x / 32 == 1 && threadIdx.x % 32 < GRID_BARRIER_COUNTERS)
        init_grid_barrier(launch_barrier(q), threadIdx.x % 32);
    return at;
}

/* After the sums: `smem` is free. GIVEN: the logits are the caller's, and there are no sums. */
template <bool GIVEN = false>
__device__ inline void route_epilogue(const nk_route_problem &p, const sm80_route_params &q, const tile_token_range &at,
                                      void *smem)
{
    const bool sorts = at.count == 0 || route_in_turns<GIVEN>(p, q, at.first, at.count, smem);
    if (sorts && p.sorts) sort_rows(p, q, smem);
}

#endif
