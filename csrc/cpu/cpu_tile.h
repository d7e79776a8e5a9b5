/* The tiles that every GEMM is made of: their coordinates, sums and output. */
#ifndef NK_CPU_TILE_H
#define NK_CPU_TILE_H

#include "cpu_path.h"

/* [L, M, N] as tiles. */
typedef struct cpu_tiling {
    int64_t l, m, n, tile_n;
} cpu_tiling;

typedef struct cpu_tile_coordinates {
    int64_t l, m0, mb, n0, nb;
} cpu_tile_coordinates;

/* Tiles are narrower where there would be too few for `threads`. */
cpu_tiling cpu_tiling_of(int64_t l, int64_t m, int64_t n, int threads);
int64_t cpu_tile_count(const cpu_tiling *tiling);
cpu_tile_coordinates cpu_tile_at(const cpu_tiling *tiling, int64_t tile);

/* How many threads are worth waking for a problem of so many multiply-adds, at most CPU_MAX_THREADS. */
int cpu_worthwhile_threads(double multiply_adds);

/* acc = sum_k A B^T. `rows_of_a` is NULL, or says which at.mb rows of A the tile's are. */
void cpu_sum_tile(cpu_means means, const nk_operand *a, const int64_t *rows_of_a, const nk_operand *b, int64_t k,
                  cpu_tile_coordinates at, cpu_tile acc);

/* Multiplies each row of acc by its token's factor. */
void cpu_scale_rows(const nk_row_scale *row_scale, const int64_t *rows_of_a, cpu_tile_coordinates at, cpu_tile acc);

/* acc = alpha acc + bias, rounded once; `bias` may be NULL. */
void cpu_scale_tile(const cpu_path *path, const nk_alpha *alpha, const nk_bias *bias, cpu_tile_coordinates at,
                    cpu_tile acc);

/* d = convert(acc); destroys acc. */
void cpu_store_tile(const cpu_path *path, const nk_output *d, cpu_tile_coordinates at, cpu_tile acc);

#endif
