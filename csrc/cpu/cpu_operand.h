/* Where an operand's elements and scale factors lie, and how a result leaves. */
#ifndef NK_CPU_OPERAND_H
#define NK_CPU_OPERAND_H

#include "cpu_convert.h"

static inline const uint8_t *operand_row(const nk_operand *o, int64_t l, int64_t row)
{
    return o->data + l * o->batch_stride + row * o->row_stride;
}

/* Scale byte of elements 16 col .. 16 col + 15; `cols` is K/16. */
static inline uint8_t operand_sf(const nk_operand *o, int64_t l, int64_t row, int64_t col, int64_t cols)
{
    const uint8_t *sf = o->sf + l * o->sf_batch_stride;
    if (o->sf_layout == NK_SF_BLOCKED) return sf[nk_sf_blocked_offset(row, col, cols)];
    return sf[row * o->sf_row_stride + col];
}

static inline float alpha_at(const nk_alpha *alpha, int64_t n)
{
    return alpha->data ? alpha->data[n * alpha->stride] : alpha->value;
}

/* alpha[n] * sum + bias[n] with one rounding */
static inline float scale_and_add(const nk_alpha *alpha, const nk_bias *bias, int64_t n, float sum)
{
    if (!bias->data) return alpha_at(alpha, n) * sum;
    return fmaf(alpha_at(alpha, n), sum, load_float(bias->data + n * bias->stride, bias->dtype));
}

static inline void store_output(const nk_output *d, int64_t l, int64_t m, int64_t n, float value)
{
    store_float(d->data + l * d->batch_stride + m * d->row_stride + n * d->col_stride, d->dtype, value);
}

#endif
