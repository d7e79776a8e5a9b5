/* The permutation: a stable counting sort of (token, selection) by expert, by one CTA or in equal ranges by several.
 *
 * A CTA counts entries by expert: those before its range, those after it, and those of each warp's eighth of its range.
 * Each warp's counts then become where its first entry of each expert goes. Last, a warp places its entries, 32 at a
 * time, those of one expert in lane order.
 *
 * The warp that routes the only token of a call needs none of this: sort_one_token(). */
#ifndef NK_ROUTE_SORT_CUH
#define NK_ROUTE_SORT_CUH

#include "route_topk.cuh"
#include "scan.cuh"

#define NOBODY (-1)

/* The experts of BATCH times 32 entries from `first` on; a lane's are 32 apart. BATCH loads at once cover their
 * latency. They are read back from the caller's `ids`. */
#define BATCH 16
__device__ inline void load_ids(const nk_route_problem &p, int64_t first, int64_t end, int ids[BATCH])
{
    const uint32_t k = (uint32_t)p.top_k;
    first += threadIdx.x & 31;
    if (p.ids_col_stride == 1 && p.ids_row_stride == k) {
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            ids[i] = first + i * 32 < end ? __ldcg(p.ids + first + i * 32) : NOBODY;
        return;
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        const uint32_t entry = (uint32_t)first + i * 32, m = entry / k, j = entry % k;
        const int32_t *at = p.ids + m * p.ids_row_stride + j * p.ids_col_stride;
        ids[i] = first + i * 32 < end ? __ldcg(at) : NOBODY;
    }
}

/* Their local experts. If ids, or the map, are overwritten meanwhile, entries may be NOBODY's. */
__device__ inline void load_experts(const nk_route_problem &p, int64_t first, int64_t end, int experts[BATCH])
{
    load_ids(p, first, end, experts);
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        experts[i] = nk_expert_of(experts[i], (int32_t)p.n);
    if (!p.expert_map) return;
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        if (experts[i] != NOBODY) experts[i] = __ldcg(p.expert_map + experts[i] * p.expert_map_stride);
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        experts[i] = nk_expert_of(experts[i], (int32_t)p.local_experts);
}

/* The sum over the threads before this one. */
__device__ inline int32_t sum_before(sort_t &s, int32_t value)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int32_t sum = scan_sum(value);
    int32_t before = 0;
    if (lane == 31) s.warp_sums[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        before += s.warp_sums[i];
    return before + sum - value;
}

/* This thread's four experts, which are neighbours. */
__device__ inline int4 *four_of(int32_t *of_experts) { return (int4 *)of_experts + threadIdx.x; }

/* Turns counts into positions of first entries. On the way it writes counts and offsets, the same from all CTAs. */
__device__ inline void place_experts(const nk_route_problem &p, sort_t &s)
{
    static_assert(NK_MAX_EXPERTS == 4 * (32 * ROUTE_SORT_WARPS), "every thread has four experts");
    const int first = threadIdx.x * 4;
    int4 sum = *four_of(s.before) + *four_of(s.after);
#pragma unroll
    for (int warp = 0; warp < ROUTE_SORT_WARPS; warp++)
        sum = sum + *four_of(s.next[warp]);
    const int32_t offset = sum_before(s, sum.x + sum.y + sum.z + sum.w);
    const int32_t counts[4] = {sum.x, sum.y, sum.z, sum.w};
    const int32_t offsets[5] = {offset, offset + sum.x, offset + sum.x + sum.y, offset + sum.x + sum.y + sum.z,
                                offset + sum.x + sum.y + sum.z + sum.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (first + i < p.local_experts) p.counts[first + i] = counts[i];
    }
#pragma unroll
    for (int i = 0; i < 5; i++) { /* the fifth is the next thread's first, or the last of all */
        if (first + i <= p.local_experts) p.offsets[first + i] = offsets[i];
    }
    if (first + 4 == NK_MAX_EXPERTS) s.placed = offsets[4];
    int4 position = make_int4(offsets[0], offsets[1], offsets[2], offsets[3]) + *four_of(s.before);
#pragma unroll
    for (int warp = 0; warp < ROUTE_SORT_WARPS; warp++) {
        const int4 count = *four_of(s.next[warp]);
        *four_of(s.next[warp]) = position;
        position = position + count;
    }
}

/* Counts entries first .. end; a warp's batches are `stride` entries apart. */
__device__ inline void count_experts(const nk_route_problem &p, int64_t first, int64_t end, int64_t stride,
                                     int32_t *counts)
{
    int experts[BATCH];
#pragma unroll 1
    for (int64_t at = first; at < end; at += stride) {
        load_experts(p, at, end, experts);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (experts[i] != NOBODY) atomicAdd(&counts[experts[i]], 1);
        }
    }
}

__device__ inline void place_entries(const nk_route_problem &p, int64_t first, int64_t end, int32_t *next)
{
    const int lane = threadIdx.x & 31;
    const int64_t entries = p.m * p.top_k; /* counted before: ids written since may say more of an expert */
    int experts[BATCH];
#pragma unroll 1
    for (int64_t at = first; at < end; at += 32 * BATCH) {
        load_experts(p, at, end, experts);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (at + i * 32 >= end) break;
            const int expert = experts[i];
            const uint32_t equal = __match_any_sync(ALL_LANES, expert), lower = equal & ((1u << lane) - 1);
            const int32_t position = expert != NOBODY ? next[expert] : 0;
            __syncwarp();
            const int64_t entry = at + i * 32 + lane;
            int32_t row = NOBODY;
            if (expert != NOBODY) {
                row = position + __popc(lower);
                if (row >= entries) row = NOBODY;
                if (row != NOBODY) p.sorted_rows[row] = (int32_t)entry;
                if (lower == 0) next[expert] = position + __popc(equal);
            }
            if (p.row_of && entry < end) p.row_of[entry] = row;
            __syncwarp();
        }
    }
}

/* The permutation of one token's selections, of which lane j has expert j. A lane counts four neighbouring experts. */
__device__ inline void sort_one_token(const nk_route_problem &p, int expert)
{
    const int lane = threadIdx.x & 31, k = (int)p.top_k;
    int local = lane < k ? expert : NOBODY;
    if (p.expert_map && local != NOBODY)
        local = nk_expert_of(p.expert_map[local * p.expert_map_stride], p.local_experts);
    int row = 0, placed = 0;
    for (int j = 0; j < k; j++) {
        const int other = __shfl_sync(ALL_LANES, local, j);
        placed += other != NOBODY;
        row += other != NOBODY && (other < local || (other == local && j < lane));
    }
    if (local == NOBODY) row = NOBODY;
    if (lane < k) {
        if (row != NOBODY) p.sorted_rows[row] = lane;
        if (lane >= placed) p.sorted_rows[lane] = NOBODY;
        if (p.row_of) p.row_of[lane] = row;
    }
    for (int base = 0; base <= p.local_experts; base += 128) {
        const int first = base + 4 * lane;
        int before = 0;
        uint32_t counts = 0; /* a byte each */
        for (int j = 0; j < k; j++) {
            const int other = __shfl_sync(ALL_LANES, local, j);
            before += other != NOBODY && other < first;
            if (other >= first && other < first + 4) counts += 1u << 8 * (other - first);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int count = counts >> 8 * i & 0xFF;
            if (first + i < p.local_experts) p.counts[first + i] = count;
            if (first + i <= p.local_experts) p.offsets[first + i] = before;
            before += count;
        }
    }
}

__device__ inline void sort_range(const nk_route_problem &p, sort_t &s, int range, int ranges)
{
    const int warp = threadIdx.x >> 5;
    const int64_t entries = p.m * p.top_k,
                  of_warp = nk_ceil_div(entries, (int64_t)ranges * (32 * ROUTE_SORT_WARPS)) * 32;
    const int64_t begin = range * of_warp * ROUTE_SORT_WARPS, end = min(begin + of_warp * ROUTE_SORT_WARPS, entries);
    const int64_t first = begin + warp * of_warp, last = min(first + of_warp, entries);
    const int64_t batch = 32 * BATCH, all = ROUTE_SORT_WARPS * batch;
#pragma unroll
    for (int i = 0; i < ROUTE_SORT_WARPS + 2; i++)
        *four_of(s.next[0] + i * NK_MAX_EXPERTS) = make_int4(0, 0, 0, 0); /* before and after, too */
    __syncthreads();
    count_experts(p, warp * batch, min(begin, entries), all, s.before);
    count_experts(p, end + warp * batch, entries, all, s.after);
    count_experts(p, first, last, batch, s.next[warp]);
    __syncthreads();
    place_experts(p, s);
    __syncthreads();
    place_entries(p, first, last, s.next[warp]);
    for (int64_t i = max(begin, (int64_t)s.placed) + threadIdx.x; i < end; i += 32 * ROUTE_SORT_WARPS)
        p.sorted_rows[i] = NOBODY; /* behind the entries of local experts */
}

#endif
