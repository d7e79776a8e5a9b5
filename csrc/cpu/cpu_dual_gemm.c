/* Computes dual_gemm.
 *
 * D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k] + bias1[n])
 *                    * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k] + bias2[n])) */
#include "cpu_backend.h"

#include "cpu_pool.h"
#include "cpu_tile.h"

typedef struct dual_gemm_call {
    const nk_dual_gemm_problem *problem;
    cpu_means means;
    cpu_tiling tiling;
} dual_gemm_call;

void cpu_gate_tile(const cpu_path *path, nk_activation activation, cpu_tile_coordinates at, cpu_tile h, cpu_tile u)
{
    for (int64_t i = 0; i < at.mb; i++)
        path->activate(activation, h[i], u[i], at.nb);
}

static void multiply_pair_of_tiles(void *context, int64_t tile)
{
    const dual_gemm_call *c = context;
    const nk_dual_gemm_problem *p = c->problem;
    const cpu_path *path = c->means.path;
    cpu_tile_coordinates at = cpu_tile_at(&c->tiling, tile);
    cpu_tile h, u;
    cpu_sum_tile(c->means, &p->a, NULL, &p->b1, p->k, at, h);
    cpu_sum_tile(c->means, &p->a, NULL, &p->b2, p->k, at, u);
    cpu_scale_rows(&p->row_scale, NULL, at, h);
    cpu_scale_rows(&p->row_scale, NULL, at, u);
    cpu_scale_tile(path, &p->alpha1, &p->bias1, at, h);
    cpu_scale_tile(path, &p->alpha2, &p->bias2, at, u);
    cpu_gate_tile(path, p->activation, at, h, u);
    cpu_store_tile(path, &p->d, at, h);
}

nk_status cpu_dual_gemm(const nk_dual_gemm_problem *p, cpu_means means, const nk_exec *exec)
{
    dual_gemm_call c = {p, means, cpu_tiling_of(p->l, p->m, p->n, means.threads)};
    return cpu_for_each(exec, cpu_tile_count(&c.tiling), means.threads, multiply_pair_of_tiles, &c);
}
