/* The CPU row: one function per operator, on checked problems. */
#ifndef NK_CPU_BACKEND_H
#define NK_CPU_BACKEND_H

#include "backend.h"
#include "cpu_path.h"
#include "cpu_tile.h"

/* cpu_<op> for every operator; that of gemv is gemm's. */
#define CPU_DECLARE(op) nk_status cpu_##op(const nk_##op##_problem *problem, cpu_means means, const nk_exec *exec);
NK_OPERATORS(CPU_DECLARE)
#undef CPU_DECLARE

/* How many multiply-adds take as long as the call. */
double cpu_route_multiply_adds(const nk_route_problem *problem);

/* One tile's fma(alpha, row_scale * sum, bias). `rows_of_a` is NULL, or says which rows of A the tile's are. */
void cpu_scaled_tile(cpu_means means, const nk_gemm_problem *problem, const int64_t *rows_of_a, cpu_tile_coordinates at,
                     cpu_tile acc);

/* One tile of a gemm, from its operands to the output. `activation` is NULL, or that of its sums. */
void cpu_gemm_tile(cpu_means means, const nk_gemm_problem *problem, const nk_activation *activation,
                   const int64_t *rows_of_a, cpu_tile_coordinates at);

/* h = act(h) * u */
void cpu_gate_tile(const cpu_path *path, nk_activation activation, cpu_tile_coordinates at, cpu_tile h, cpu_tile u);

/* What encoding by a global scale needs. */
cpu_encoder cpu_encoder_of(const nk_alpha *global_scale);

#endif
