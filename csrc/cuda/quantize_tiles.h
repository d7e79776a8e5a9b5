/* How quantize and dequantize divide a matrix into tiles of 256 threads, for host and device. */
#ifndef NK_QUANTIZE_TILES_H
#define NK_QUANTIZE_TILES_H

#include "nk_format.h"

#define CUDA_TILE_THREADS 256
#define CUDA_TILE_BITS 8 /* log2 of that */
#define CUDA_TILE_MAX_TURNS 4

/* Division by a number that the host knows, as a multiplication. */
typedef struct cuda_divisor {
    uint32_t value, magic;
    int32_t shift;
} cuda_divisor;

NK_HD cuda_divisor cuda_divisor_of(int64_t value)
{
    cuda_divisor d = {(uint32_t)value, 0, 31};
    while ((int64_t)1 << (d.shift - 31) < value)
        d.shift++;
    d.magic = (uint32_t)(((uint64_t)1 << d.shift) / d.value + 1);
    return d;
}

/* n / d.value for n and d.value below 2^31 */
NK_HD uint32_t cuda_divide(uint32_t n, cuda_divisor d) { return (uint32_t)((uint64_t)n * d.magic >> d.shift); }

/* A thread takes one column of a tile and `turns` rows of it. */
typedef struct cuda_tiles {
    cuda_divisor row_tiles, col_tiles; /* of a batch */
    int64_t count;                     /* of all batches */
    int32_t column_bits;               /* log2 of a tile's columns, each of them a thread's */
    int32_t turns;
} cuda_tiles;

/* The GPU runs `room` threads at once. A thread has several turns only if all threads have work then, and if a
 * tile has no more than `max_rows` rows. */
NK_HD cuda_tiles cuda_tiles_of(int64_t l, int64_t rows, int64_t cols, int64_t room, int64_t max_rows,
                               int32_t max_column_bits)
{
    cuda_tiles t = {.turns = 1};
    while (t.column_bits < max_column_bits && (int64_t)1 << t.column_bits < cols)
        t.column_bits++;
    while (t.turns < CUDA_TILE_MAX_TURNS && l * rows * cols / (2 * t.turns) >= room &&
           (CUDA_TILE_THREADS >> t.column_bits) * 2 * t.turns <= max_rows)
        t.turns *= 2;
    const int64_t row_tiles = nk_ceil_div(rows, (int64_t)(CUDA_TILE_THREADS >> t.column_bits) * t.turns);
    const int64_t col_tiles = nk_ceil_div(cols, (int64_t)1 << t.column_bits);
    t.row_tiles = cuda_divisor_of(row_tiles);
    t.col_tiles = cuda_divisor_of(col_tiles);
    t.count = l * row_tiles * col_tiles; /* a launch has fewer than 2^31 CTAs */
    return t;
}

#endif
