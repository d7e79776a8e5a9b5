/* Contiguous grouped GEMM: which expert's tokens a tile holds. All threads of a CTA look at `offsets` together, as many
 * experts at a time as there are threads. */
#ifndef NK_SM80_EXPERT_CUH
#define NK_SM80_EXPERT_CUH

#include "nk_format.h"

typedef struct expert_tokens {
    int64_t expert;
    int64_t begin, end; /* of the expert's rows */
    int64_t first;      /* of the tile's */
    int64_t atom_row;   /* SF atom rows of the experts before it */
    uint32_t tiles;     /* of all experts, where none was found */
    bool found;
} expert_tokens;

template <int WARPS> struct expert_scan_t {
    int2 warp_sums[WARPS];
    int warp_most[WARPS];
    expert_tokens found;
};

__device__ inline int scan_max(int value)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(~0u, value, step);
        if (lane >= step) value = max(value, before);
    }
    return value;
}

__device__ inline int scan_sum(int value)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(~0u, value, step);
        if (lane >= step) value += before;
    }
    return value;
}

#define NO_TILE UINT32_MAX

/* Tile `index` of TOKENS tokens, counted over all experts, or none of them: NO_TILE. Offsets are read as if clamped to
 * 0..rows and never falling: whatever they hold, no byte outside the operands is touched. `s` must be free, and is
 * again afterwards. */
template <int TOKENS, int WARPS>
__device__ inline expert_tokens find_expert(expert_scan_t<WARPS> &s, const int32_t *offsets, int64_t experts,
                                            int64_t rows, uint32_t index)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int most = (int)(rows < INT32_MAX ? rows : INT32_MAX);
    int end_before = max(0, min(offsets[0], most)), atoms_before = 0;
    uint32_t tiles_before = 0;
    if (threadIdx.x == 0) s.found.found = false; /* two barriers before anyone else writes it */
    for (int64_t base = 0; base < experts; base += 32 * WARPS) {
        const int64_t expert = base + threadIdx.x;
        const int end_here = expert < experts ? max(0, min(offsets[expert + 1], most)) : 0;

        int end = scan_max(end_here);
        if (lane == 31) s.warp_most[warp] = end;
        __syncthreads();
        int begin = __shfl_up_sync(~0u, end, 1);
        int carried = end_before;
        for (int i = 0; i < warp; i++)
            carried = max(carried, s.warp_most[i]);
        begin = lane ? max(begin, carried) : carried;
        end = max(end, carried);
        const int tokens = expert < experts ? end - begin : 0;

        const uint32_t tiles = ((uint32_t)tokens + TOKENS - 1) / TOKENS;
        const int atoms = (int)(((uint32_t)tokens + NK_SF_ATOM_ROWS - 1) / NK_SF_ATOM_ROWS);
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
            end_before = max(end_before, s.warp_most[i]);
        }
        if (index - first_tile < tiles) {
            s.found = {expert, begin, end, begin + (int64_t)(index - first_tile) * TOKENS, first_atom, 0, true};
        }
        __syncthreads();
        if (index < tiles_before) break;
    }
    expert_tokens found = s.found;
    found.tiles = tiles_before;
    __syncthreads();
    return found;
}

#endif
