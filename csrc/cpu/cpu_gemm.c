/* D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n]) */
#include "cpu_backend.h"

#include "cpu_operand.h"
#include "cpu_tile.h"

static void finish_tile(const nk_gemm_problem *p, int64_t l, int64_t m0, int64_t mb, int64_t n0, int64_t nb,
                        cpu_tile acc)
{
    for (int64_t i = 0; i < mb; i++) {
        for (int64_t j = 0; j < nb; j++) {
            store_output(&p->d, l, m0 + i, n0 + j, scale_and_add(&p->alpha, &p->bias, n0 + j, acc[i][j]));
        }
    }
}

void cpu_gemm(const nk_gemm_problem *p)
{
    cpu_tile acc;
    for (int64_t l = 0; l < p->l; l++) {
        for (int64_t m0 = 0; m0 < p->m; m0 += CPU_TILE_M) {
            for (int64_t n0 = 0; n0 < p->n; n0 += CPU_TILE_N) {
                int64_t mb = cpu_min(CPU_TILE_M, p->m - m0), nb = cpu_min(CPU_TILE_N, p->n - n0);
                cpu_accumulate(&p->a, &p->b, l, m0, mb, n0, nb, p->k, acc);
                finish_tile(p, l, m0, mb, n0, nb, acc);
            }
        }
    }
}
