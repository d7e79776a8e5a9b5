/* Sums over K for one tile of A B^T, which every matrix operator is made of. */
#ifndef NK_CPU_TILE_H
#define NK_CPU_TILE_H

#include "../nk_problem.h"

#define CPU_TILE_M 32
#define CPU_TILE_N 32
#define CPU_TILE_K 512 /* elements decoded at a time: two panels fit a core's L2 */

typedef float cpu_tile[CPU_TILE_M][CPU_TILE_N];

/* acc[i][j] = sum_k A[l, m0 + i, k] B[l, n0 + j, k] for i < mb, j < nb. One element's sum does not depend on which tile
 * it is in, so a row's result does not depend on the rest of the batch. */
void cpu_accumulate(const nk_operand *a, const nk_operand *b, int64_t l, int64_t m0, int64_t mb, int64_t n0, int64_t nb,
                    int64_t k, cpu_tile acc);

#endif
