/* out = convert(fl32(e2m1 * sf) * s2); the product in brackets is exact. */
#include "cpu_backend.h"

#include "cpu_operand.h"

void cpu_dequantize(const nk_dequantize_problem *p)
{
    float global_scale = alpha_at(&p->global_scale, 0);
    for (int64_t l = 0; l < p->l; l++) {
        for (int64_t row = 0; row < p->rows; row++) {
            const uint8_t *codes = operand_row(&p->q, l, row);
            for (int64_t k = 0; k < p->k; k++) {
                float sf = e4m3_to_float(operand_sf(&p->q, l, row, k / NK_SF_VEC, p->k / NK_SF_VEC));
                float e2m1 = E2M1[codes[k / 2] >> (k % 2 * 4) & 15];
                store_output(&p->out, l, row, k, e2m1 * sf * global_scale);
            }
        }
    }
}
