/* Tiles whose K is split among CTAs, so that the sums have the same bits in every run.
 *
 * The units of all tiles, laid end to end, are dealt out evenly: CTA c takes `units_per_cta` of them from
 * c * units_per_cta on. A unit is a step of K; where no tile is split it is a whole tile. A CTA stores the tiles of
 * which it has every unit. Of others it has at most two parts, whose sums it writes to the workspace: a part that
 * begins its tile is part 2 c + 1, any other is part 2 c. A second kernel adds the parts of each split tile in the
 * order of K. */
#ifndef NK_SPLIT_CUH
#define NK_SPLIT_CUH

#include "vectors.cuh"

typedef struct deal {
    uint32_t units, units_per_cta; /* units: of all tiles */
} deal;

/* Calls multiply(tile, first unit, units) for each tile of which this CTA has units; `tile` is tiles.tile_of(unit).
 * Shared memory is free at every call of either. */
template <typename TILES, typename F> __device__ inline void each_part(const TILES &tiles, F multiply)
{
    uint32_t unit = blockIdx.x * tiles.all.units_per_cta;
    const uint32_t end = min(unit + tiles.all.units_per_cta, tiles.all.units);
#pragma unroll 1
    while (unit < end) {
        const auto tile = tiles.tile_of(unit);
        const uint32_t first = unit - tile.begin, units = min(end - unit, tile.units - first);
        unit += units;
        if (tile.found) multiply(tile, first, units);
        __syncthreads();
    }
}

__device__ inline uint32_t part_of(uint32_t cta, bool begins_tile) { return 2 * cta + (begins_tile ? 1 : 0); }

/* Four of this thread's sums of a part: partials[part][quad][thread][4]. */
__device__ inline float4 *partial_at(float *partials, uint32_t part, int quads, int quad, int threads)
{
    return (float4 *)partials + ((int64_t)part * quads + quad) * threads + threadIdx.x;
}

/* The CTAs that have parts of a tile: first .. last. */
typedef struct split_tile {
    uint32_t first, last;
} split_tile;

/* Whether the boundary between CTAs cta - 1 and cta is the first inside the tile of units begin .. begin + units. Each
 * split tile has one such boundary, and is reduced by the CTA that looks at it. */
__device__ inline bool is_split_at(uint32_t cta, uint32_t units_per_cta, uint32_t begin, uint32_t units, split_tile &t)
{
    const uint32_t boundary = cta * units_per_cta;
    t.first = cta - 1;
    t.last = (begin + units - 1) / units_per_cta;
    return boundary != begin && boundary - begin <= units_per_cta;
}

/* The sum of a tile's parts, in the order of K. */
__device__ inline float4 sum_parts(float *partials, const split_tile &t, int quads, int quad, int threads)
{
    float4 sum = __ldcg(partial_at(partials, part_of(t.first, true), quads, quad, threads));
#pragma unroll 4
    for (uint32_t cta = t.first + 1; cta <= t.last; cta++)
        sum = sum + __ldcg(partial_at(partials, part_of(cta, false), quads, quad, threads));
    return sum;
}

#endif
