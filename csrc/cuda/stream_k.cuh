/* The stream-K tile scheduler, whose sums have the same bits in every run.
 *
 * The K steps of all tiles, laid end to end, are the iterations of a launch. CTA c takes `iters_per_cta` of them from
 * c * iters_per_cta on. A data-parallel launch, which splits no tile, counts a whole tile as one iteration. A CTA
 * stores a tile if it has all its iterations. Else it writes partial sums of the tile to the workspace. A CTA has at
 * most two such tiles: the partial sums of one that it begins are number 2 c + 1, of one that it continues number 2 c.
 * A second kernel, `_reduce`, adds a split tile's partial sums in the order of K. */
#ifndef NK_STREAM_K_CUH
#define NK_STREAM_K_CUH

#include "vectors.cuh"

typedef struct stream_k {
    uint32_t iters, iters_per_cta; /* iters: of all tiles */
} stream_k;

/* Calls multiply(tile, first iteration, iterations) for each tile of which this CTA has iterations; `tile` is
 * tiles.tile_of(iteration). Shared memory is free at every call of either. */
template <typename TILES, typename F> __device__ inline void stream_k_for_each_tile(const TILES &tiles, F multiply)
{
    uint32_t iter = blockIdx.x * tiles.scheduler.iters_per_cta;
    const uint32_t end = min(iter + tiles.scheduler.iters_per_cta, tiles.scheduler.iters);
#pragma unroll 1
    while (iter < end) {
        const auto tile = tiles.tile_of(iter);
        const uint32_t first = iter - tile.first_iter, iters = min(end - iter, tile.iters - first);
        iter += iters;
        if (tile.found) multiply(tile, first, iters);
        __syncthreads();
    }
}

/* The number of a CTA's partial sums in the workspace. */
__device__ inline uint32_t partials_number(uint32_t cta, bool begins_tile) { return 2 * cta + (begins_tile ? 1 : 0); }

/* Four of this thread's partial sums: workspace[number][quad][thread][4]. */
__device__ inline float4 *partials_at(float *workspace, uint32_t number, int quads, int quad, int threads)
{
    return (float4 *)workspace + ((int64_t)number * quads + quad) * threads + threadIdx.x;
}

/* The CTAs that have iterations of a split tile: first_cta .. last_cta. */
typedef struct split_tile {
    uint32_t first_cta, last_cta;
} split_tile;

/* Whether the boundary between CTAs cta - 1 and cta is the first inside the tile of iterations first .. first + iters.
 * Each split tile has one such boundary; the CTA that looks at it adds the tile's partial sums. */
__device__ inline bool is_split_at(uint32_t cta, uint32_t iters_per_cta, uint32_t first, uint32_t iters, split_tile &t)
{
    const uint32_t boundary = cta * iters_per_cta;
    t.first_cta = cta - 1;
    t.last_cta = (first + iters - 1) / iters_per_cta;
    return boundary != first && boundary - first <= iters_per_cta;
}

/* The sum of a split tile's partial sums, in the order of K. */
__device__ inline float4 sum_partials(float *workspace, const split_tile &t, int quads, int quad, int threads)
{
    float4 sum = __ldcg(partials_at(workspace, partials_number(t.first_cta, true), quads, quad, threads));
#pragma unroll 4
    for (uint32_t cta = t.first_cta + 1; cta <= t.last_cta; cta++)
        sum = sum + __ldcg(partials_at(workspace, partials_number(cta, false), quads, quad, threads));
    return sum;
}

#endif
