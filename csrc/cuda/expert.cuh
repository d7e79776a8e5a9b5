/* Contiguous grouped GEMM: which expert's tokens a tile holds. All threads of a CTA read `offsets` together, as many
 * experts at a time as there are threads. */
#ifndef NK_EXPERT_CUH
#define NK_EXPERT_CUH

#include "nk_format.h"
#include "scan.cuh"
#include "sf_layout.cuh"

typedef struct expert_tile {
    int64_t expert;
    int64_t begin, end; /* of the expert's rows */
    int64_t first;      /* row of the tile */
    int64_t atom_row;   /* SF atom rows of the experts before it */
    uint32_t tiles;     /* of all experts, if none was found */
    bool found;
} expert_tile;

template <int WARPS> struct expert_scan {
    int2 warp_sums[WARPS]; /* tiles, SF atom rows */
    int warp_ends[WARPS];
    expert_tile found;
};

/* Offset `index` from `first_row` on, clamped to 0..rows, whatever memory holds: `rows` is the operands' extent. */
__device__ inline int clamped_offset(const int32_t *offsets, int64_t index, int64_t rows, int32_t first_row = 0)
{
    const int32_t most = (int32_t)min(rows, (int64_t)INT32_MAX);
    return min(max(offsets[index], first_row) - first_row, most);
}

#define NO_TILE UINT32_MAX

/* What a scan says of an expert: its rows, the tiles and SF atom rows of the experts before it, and its own tiles. */
typedef struct scanned_expert {
    int64_t expert;
    int begin, end, first_atom;
    uint32_t first_tile, tiles;
} scanned_expert;

/* Calls f(scanned_expert) for each expert, in a thread of its own, up to the one with tile `index` of TILE_M tokens, or
 * for all if that is NO_TILE. Returns the tiles of the experts that were scanned. Offsets are read as if clamped to
 * 0..rows and never falling: whatever they hold, no byte outside the operands is touched. Of a slice of the experts'
 * rows they count from its first row, so an expert has the rows that lie in the slice. `s` must be free, and is free
 * again behind the caller's next barrier. */
template <int TILE_M, int WARPS, typename F>
__device__ inline uint32_t scan_experts(expert_scan<WARPS> &s, const int32_t *offsets, int64_t experts, int64_t rows,
                                        int32_t first_row, uint32_t index, F f)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int end_before = clamped_offset(offsets, 0, rows, first_row), atoms_before = 0;
    uint32_t tiles_before = 0;
    for (int64_t base = 0; base < experts; base += 32 * WARPS) {
        const int64_t expert = base + threadIdx.x;
        const int end_here = expert < experts ? clamped_offset(offsets, expert + 1, rows, first_row) : 0;

        int end = scan_max(end_here);
        if (lane == 31) s.warp_ends[warp] = end;
        __syncthreads();
        int begin = __shfl_up_sync(~0u, end, 1);
        int carried = end_before;
        for (int i = 0; i < warp; i++)
            carried = max(carried, s.warp_ends[i]);
        begin = lane ? max(begin, carried) : carried;
        end = max(end, carried);
        const int tokens = expert < experts ? end - begin : 0;

        const uint32_t tiles = ((uint32_t)tokens + TILE_M - 1) / TILE_M;
        const int atoms = (int)(((uint32_t)tokens + SF_ATOM_ROWS - 1) / SF_ATOM_ROWS);
        int first_atom = scan_sum(atoms);
        uint32_t first_tile = (uint32_t)scan_sum((int)tiles);
        if (lane == 31) s.warp_sums[warp] = make_int2((int)first_tile, first_atom);
        __syncthreads();
        first_tile += tiles_before - tiles;
        first_atom += atoms_before - atoms;
        for (int i = 0; i < WARPS; i++) {
            const int2 sums = s.warp_sums[i];
            if (i < warp) first_tile += (uint32_t)sums.x, first_atom += sums.y;
            tiles_before += (uint32_t)sums.x;
            atoms_before += sums.y;
            end_before = max(end_before, s.warp_ends[i]);
        }
        if (expert < experts) f(scanned_expert{expert, begin, end, first_atom, first_tile, tiles});
        __syncthreads();
        if (index < tiles_before) break;
    }
    return tiles_before;
}

/* Tile `index` of TILE_M tokens, counted over all experts. NO_TILE finds none and counts all. See scan_experts(). */
template <int TILE_M, int WARPS>
__device__ inline expert_tile find_expert(expert_scan<WARPS> &s, const int32_t *offsets, int64_t experts, int64_t rows,
                                          uint32_t index)
{
    if (threadIdx.x == 0) s.found.found = false; /* two barriers before another thread writes it */
    const uint32_t tiles = scan_experts<TILE_M>(s, offsets, experts, rows, 0, index, [&](const scanned_expert &e) {
        const uint32_t number = index - e.first_tile;
        if (number < e.tiles)
            s.found = {e.expert, e.begin, e.end, e.begin + (int64_t)number * TILE_M, e.first_atom, 0, true};
    });
    expert_tile found = s.found;
    found.tiles = tiles;
    __syncthreads();
    return found;
}

/* Writes each expert's first tile and first row, and behind the last expert where all end: [experts + 1]. All threads
 * call it, and may read the list after it. */
template <int TILE_M, int WARPS>
__device__ inline void list_experts(expert_scan<WARPS> &s, const int32_t *offsets, int64_t experts, int64_t rows,
                                    int32_t first_row, int2 *list)
{
    if (threadIdx.x == 0) list[experts] = make_int2(0, 0); /* there may be none */
    scan_experts<TILE_M>(s, offsets, experts, rows, first_row, NO_TILE, [&](const scanned_expert &e) {
        list[e.expert] = make_int2((int)e.first_tile, e.begin);
        if (e.expert == experts - 1) list[experts] = make_int2((int)(e.first_tile + e.tiles), e.end);
    });
    __syncthreads();
}

/* The expert that has tile `index`, by such a list. */
__device__ inline int expert_of_tile(const int2 *list, int64_t experts, int index)
{
    int low = 0, high = (int)experts;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (list[middle].x <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
