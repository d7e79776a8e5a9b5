/* Scale bytes from [rows, cols] to 128x4 atoms, and back. Padding is written as zero and never read.
 *
 * Work: see relayout_config.h. Roles: all threads alike. No barriers, no shared memory. */
#ifndef NK_RELAYOUT_CUH
#define NK_RELAYOUT_CUH

#include "nk_problem.h"
#include "relayout_config.h"
#include "sf_layout.cuh"

/* The first `count` of four bytes, the first in the lowest bits; the rest is zero. */
__device__ inline uint32_t load_bytes(const uint8_t *from, int64_t count)
{
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < count) word |= (uint32_t)from[i] << 8 * i;
    return word;
}

__device__ inline void store_bytes(uint8_t *to, int64_t count, uint32_t word)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < count) to[i] = (uint8_t)(word >> 8 * i);
}

template <nk_sf_layout TO, bool WIDE>
__device__ inline void relayout_atoms(const nk_relayout_problem &p, int64_t atom_rows, int64_t col_tiles)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t atoms = nk_ceil_div(p.cols, SF_ATOM_COLS), row_tile = blockIdx.x / col_tiles;
    const int64_t l = row_tile / atom_rows, atom_row = row_tile - l * atom_rows;
    const int64_t atom = (blockIdx.x - row_tile * col_tiles) * CUDA_RELAYOUT_ATOMS + lane % 8;
    const int64_t row = atom_row * SF_ATOM_ROWS + 4 * warp + lane / 8, col = SF_ATOM_COLS * atom;
    if (atom >= atoms) return;
    uint8_t *blocked = p.blocked + l * p.blocked_batch_stride + nk_sf_blocked_offset(row, col, p.cols);
    uint8_t *linear = p.linear + l * p.linear_batch_stride + row * p.linear_row_stride + col;
    const int64_t apart = SF_QUARTER_ROWS * p.linear_row_stride, count = p.cols - col;
    uint32_t words[4];
    if (TO == NK_SF_BLOCKED) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[i] = 0;
            if (row + SF_QUARTER_ROWS * i >= p.rows) continue;
            words[i] = WIDE ? *(const uint32_t *)(linear + i * apart) : load_bytes(linear + i * apart, count);
        }
        if (WIDE) {
            *(uint4 *)blocked = make_uint4(words[0], words[1], words[2], words[3]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                store_bytes(blocked + sf_offset_of_quarter(i), 4, words[i]);
        }
    } else {
        if (WIDE) {
            const uint4 vector = *(const uint4 *)blocked;
            words[0] = vector.x;
            words[1] = vector.y;
            words[2] = vector.z;
            words[3] = vector.w;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (row + SF_QUARTER_ROWS * i >= p.rows) continue;
            if (WIDE)
                *(uint32_t *)(linear + i * apart) = words[i];
            else
                store_bytes(linear + i * apart, count, load_bytes(blocked + sf_offset_of_quarter(i), count));
        }
    }
}

/* All kernels of a row. */
#define RELAYOUT_OF(row, name, TO, WIDE)                                                                           \
    extern "C" __global__ void __launch_bounds__(CUDA_RELAYOUT_THREADS)                                            \
        row##_relayout_##name(const __grid_constant__ nk_relayout_problem p, int64_t atom_rows, int64_t col_tiles) \
    {                                                                                                              \
        relayout_atoms<TO, WIDE>(p, atom_rows, col_tiles);                                                         \
    }

#define RELAYOUT_KERNELS(row)                                 \
    RELAYOUT_OF(row, to_blocked, NK_SF_BLOCKED, true)         \
    RELAYOUT_OF(row, to_blocked_narrow, NK_SF_BLOCKED, false) \
    RELAYOUT_OF(row, to_linear, NK_SF_LINEAR, true)           \
    RELAYOUT_OF(row, to_linear_narrow, NK_SF_LINEAR, false)

#endif
