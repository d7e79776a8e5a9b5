/* dequantize: out = convert(fl(fl(e2m1 * sf) * s2)). The inner product is exact. */
#include "cpu_backend.h"

#include "cpu_operand.h"
#include "cpu_path.h"
#include "cpu_pool.h"

#define L1_ELEMENTS 1024   /* decoded at a time: they stay in L1 until they are stored */
#define JOB_ELEMENTS 65536 /* some tens of microseconds */

typedef struct dequantization {
    const nk_dequantize_problem *problem;
    const cpu_path *path;
    int64_t rows; /* of a job; rows of all batches are numbered in turn */
} dequantization;

static void store_values(const dequantization *d, int64_t l, int64_t row, int64_t k, int64_t count, const float *values)
{
    const nk_output *out = &d->problem->out;
    uint8_t *to = out->data + l * out->batch_stride + row * out->row_stride + k * out->col_stride;
    if (out->col_stride == float_bytes(out->dtype)) {
        d->path->store(values, out->dtype, count, to);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        cpu_store_float(to + i * out->col_stride, out->dtype, values[i]);
}

static void dequantize_rows(void *context, int64_t job)
{
    const dequantization *d = context;
    const nk_dequantize_problem *p = d->problem;
    const nk_alpha *scale = &p->global_scale;
    float values[L1_ELEMENTS];
    uint8_t sf[L1_ELEMENTS / NK_SF_VEC] = {0};
    for (int64_t i = job * d->rows; i < cpu_min((job + 1) * d->rows, p->l * p->rows); i++) {
        int64_t l = i / p->rows, row = i % p->rows;
        const float s2 = scale->data ? scale->data[l * scale->group_stride + row * scale->stride] : scale->value;
        for (int64_t k = 0; k < p->k; k += L1_ELEMENTS) {
            int64_t count = cpu_min(L1_ELEMENTS, p->k - k);
            gather_sf(&p->q, l, row, k / NK_SF_VEC, count / NK_SF_VEC, p->k / NK_SF_VEC, sf);
            d->path->decode(operand_row(&p->q, l, row) + k / 2, sf, s2, count / NK_SF_VEC, values);
            store_values(d, l, row, k, count, values);
        }
    }
}

nk_status cpu_dequantize(const nk_dequantize_problem *p, cpu_means means, const nk_exec *exec)
{
    int64_t rows = p->k < JOB_ELEMENTS ? JOB_ELEMENTS / (p->k + 1) + 1 : 1;
    dequantization d = {p, means.path, rows};
    return cpu_for_each(exec, nk_ceil_div(p->l * p->rows, rows), means.threads, dequantize_rows, &d);
}
