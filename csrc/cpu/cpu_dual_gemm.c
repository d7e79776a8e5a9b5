/* D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k]) * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k])) */
#include "cpu_backend.h"

#include "cpu_operand.h"
#include "cpu_tile.h"

/* One fp32 rounding of the mathematical function, to within what double-precision libm gives. */
static float activate(nk_activation activation, float h)
{
    double x = h;
    switch (activation) {
    case NK_SILU:
        return (float)(x / (1 + exp(-x)));
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

static void finish_tile(const nk_dual_gemm_problem *p, int64_t l, int64_t m0, int64_t mb, int64_t n0, int64_t nb,
                        cpu_tile acc1, cpu_tile acc2)
{
    for (int64_t i = 0; i < mb; i++) {
        for (int64_t j = 0; j < nb; j++) {
            float h = alpha_at(&p->alpha1, n0 + j) * acc1[i][j];
            float u = alpha_at(&p->alpha2, n0 + j) * acc2[i][j];
            store_output(&p->d, l, m0 + i, n0 + j, activate(p->activation, h) * u);
        }
    }
}

void cpu_dual_gemm(const nk_dual_gemm_problem *p)
{
    cpu_tile acc1, acc2;
    for (int64_t l = 0; l < p->l; l++) {
        for (int64_t m0 = 0; m0 < p->m; m0 += CPU_TILE_M) {
            for (int64_t n0 = 0; n0 < p->n; n0 += CPU_TILE_N) {
                int64_t mb = cpu_min(CPU_TILE_M, p->m - m0), nb = cpu_min(CPU_TILE_N, p->n - n0);
                cpu_accumulate(&p->a, &p->b1, l, m0, mb, n0, nb, p->k, acc1);
                cpu_accumulate(&p->a, &p->b2, l, m0, mb, n0, nb, p->k, acc2);
                finish_tile(p, l, m0, mb, n0, nb, acc1, acc2);
            }
        }
    }
}
