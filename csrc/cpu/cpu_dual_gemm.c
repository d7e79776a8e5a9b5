/* D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k]) * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k])) */
#include "cpu_backend.h"

#include "cpu_pool.h"
#include "cpu_tile.h"

#include <math.h>

typedef struct dual_gemm {
    const nk_dual_gemm_problem *problem;
    cpu_means means;
    cpu_tiling tiling;
} dual_gemm;

/* One fp32 rounding of the mathematical function, to within what double-precision libm gives; silu has its own. */
static float activate(nk_activation activation, float h)
{
    double x = h;
    switch (activation) {
    case NK_SILU:
        break;
    case NK_GELU:
        return (float)(x / 2 * (1 + erf(x * sqrt(0.5))));
    case NK_GELU_TANH:
        return (float)(x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))));
    case NK_RELU:
        return h < 0 ? 0.0f : h; /* keeps NaN */
    case NK_IDENTITY:
        return h;
    }
    return NAN;
}

static void activate_row(const nk_dual_gemm_problem *p, const cpu_path *path, float *h, const float *u, int64_t count)
{
    if (p->activation == NK_SILU) {
        path->gate(h, u, count);
        return;
    }
    for (int64_t j = 0; j < count; j++)
        h[j] = activate(p->activation, h[j]) * u[j];
}

static void run_tile(void *context, int64_t tile)
{
    const dual_gemm *c = context;
    const nk_dual_gemm_problem *p = c->problem;
    cpu_tile_place at = cpu_tile_at(&c->tiling, tile);
    cpu_tile h, u;
    cpu_sum_tile(c->means, &p->a, &p->b1, p->k, at, h);
    cpu_sum_tile(c->means, &p->a, &p->b2, p->k, at, u);
    cpu_scale_tile(c->means.path, &p->alpha1, NULL, at, h);
    cpu_scale_tile(c->means.path, &p->alpha2, NULL, at, u);
    for (int64_t i = 0; i < at.mb; i++)
        activate_row(p, c->means.path, h[i], u[i], at.nb);
    cpu_store_tile(c->means.path, &p->d, at, h);
}

void cpu_dual_gemm(const nk_dual_gemm_problem *p, cpu_means means)
{
    double products = 2 * (double)p->l * (double)p->m * (double)p->n * (double)p->k;
    int threads = cpu_worthwhile_threads(products, means.threads);
    dual_gemm c = {p, means, cpu_tiling_of(p->l, p->m, p->n, threads)};
    cpu_for_each(cpu_tile_count(&c.tiling), threads, run_tile, &c);
}
