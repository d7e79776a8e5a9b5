/* Computes gemm and gemv: D[l,m,n] = convert(alpha[n] * (row_scale[l,m] * sum_k A[l,m,k] B[l,n,k]) +
 * bias[n]). */
#include "cpu_backend.h"

#include "cpu_pool.h"
#include "cpu_tile.h"

typedef struct gemm_call {
    const nk_gemm_problem *problem;
    cpu_means means;
    cpu_tiling tiling;
} gemm_call;

/* acc = act(acc): a product with ones rounds nothing. */
static void activate_tile(const cpu_path *path, const nk_activation *activation, cpu_tile_coordinates at, cpu_tile acc)
{
    float ones[CPU_TILE_N];
    for (int64_t i = 0; i < at.nb; i++)
        ones[i] = 1;
    for (int64_t i = 0; i < at.mb; i++)
        path->activate(*activation, acc[i], ones, at.nb);
}

void cpu_scaled_tile(cpu_means means, const nk_gemm_problem *p, const int64_t *rows_of_a, cpu_tile_coordinates at,
                     cpu_tile acc)
{
    cpu_sum_tile(means, &p->a, rows_of_a, &p->b, p->k, at, acc);
    cpu_scale_rows(&p->row_scale, rows_of_a, at, acc);
    cpu_scale_tile(means.path, &p->alpha, &p->bias, at, acc);
}

void cpu_gemm_tile(cpu_means means, const nk_gemm_problem *p, const nk_activation *activation, const int64_t *rows_of_a,
                   cpu_tile_coordinates at)
{
    cpu_tile acc;
    cpu_scaled_tile(means, p, rows_of_a, at, acc);
    if (activation) activate_tile(means.path, activation, at, acc);
    cpu_store_tile(means.path, &p->d, at, acc);
}

static void multiply_gemm_tile(void *context, int64_t tile)
{
    gemm_call *g = context;
    cpu_gemm_tile(g->means, g->problem, NULL, NULL, cpu_tile_at(&g->tiling, tile));
}

nk_status cpu_gemm(const nk_gemm_problem *p, cpu_means means, const nk_exec *exec)
{
    gemm_call g = {p, means, cpu_tiling_of(p->l, p->m, p->n, means.threads)};
    return cpu_for_each(exec, cpu_tile_count(&g.tiling), means.threads, multiply_gemm_tile, &g);
}
