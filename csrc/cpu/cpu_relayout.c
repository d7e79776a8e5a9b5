/* Scale bytes between [rows, cols] and 128x4 atoms; padding is written as zero and never read. */
#include "cpu_backend.h"

#include "../nk_format.h"

#include <string.h>

void cpu_relayout(const nk_relayout_problem *p, cpu_means means)
{
    (void)means;
    int64_t padded = nk_sf_padded_rows(p->rows) * nk_sf_padded_cols(p->cols);
    for (int64_t l = 0; l < p->l; l++) {
        uint8_t *linear = p->linear + l * p->linear_batch_stride;
        uint8_t *blocked = p->blocked + l * p->blocked_batch_stride;
        if (p->to == NK_SF_BLOCKED && padded) memset(blocked, 0, (size_t)padded);
        for (int64_t row = 0; row < p->rows; row++) {
            for (int64_t col = 0; col < p->cols; col++) {
                uint8_t *in_linear = linear + row * p->linear_row_stride + col;
                uint8_t *in_blocked = blocked + nk_sf_blocked_offset(row, col, p->cols);
                if (p->to == NK_SF_BLOCKED)
                    *in_blocked = *in_linear;
                else
                    *in_linear = *in_blocked;
            }
        }
    }
}
