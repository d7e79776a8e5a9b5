/* combine: out[m,h] = convert(sum + residual[m,h]), sum = fl(sum + fl(weights[m,j] products[row_of[m k + j],h])) for j
 * = 0 .. k-1 from +0 on. The order of these fp32 operations is the contract: every backend writes the same bytes. */
#include "cpu_backend.h"

#include "cpu_operand.h"
#include "cpu_path.h"
#include "cpu_pool.h"

#define L1_ELEMENTS 1024   /* summed at a time: they stay in L1 until they are stored */
#define JOB_ELEMENTS 65536 /* of products; some tens of microseconds */

typedef struct combination {
    const nk_combine_problem *problem;
    const cpu_path *path;
    int64_t rows; /* of the output, of a job */
} combination;

/* Elements h .. h + count - 1 of a row. */
static void load_row_elements(const combination *c, const nk_operand *o, int64_t row, int64_t h, int64_t count,
                              float *values)
{
    c->path->load(operand_row(o, 0, row) + h * float_bytes(o->dtype), o->dtype, count, values);
}

static void store_elements(const combination *c, int64_t m, int64_t h, int64_t count, const float *values)
{
    const nk_output *out = &c->problem->out;
    if (out->col_stride == float_bytes(out->dtype)) {
        c->path->store(values, out->dtype, count, out->data + m * out->row_stride + h * out->col_stride);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        store_output(out, 0, m, h + i, values[i]);
}

/* The sum over a token's selections; those of row -1 are left out, whatever they weigh. */
static void sum_rows(const combination *c, int64_t m, int64_t h, int64_t count, float *sum)
{
    const nk_combine_problem *p = c->problem;
    const uint8_t *weights = operand_row(&p->weights, 0, m);
    float values[L1_ELEMENTS];
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (int64_t j = 0; j < p->k; j++) {
        const int32_t row = nk_row_among(read_once(&p->row_of[m * p->k + j]), p->rows);
        if (row < 0) continue;
        const float weight = cpu_load_float(weights + j * p->weights.k_stride, p->weights.dtype);
        load_row_elements(c, &p->products, row, h, count, values);
        for (int64_t i = 0; i < count; i++)
            sum[i] += weight * values[i];
    }
}

static void combine_rows(void *context, int64_t job)
{
    const combination *c = context;
    const nk_combine_problem *p = c->problem;
    float sum[L1_ELEMENTS], residual[L1_ELEMENTS];
    for (int64_t m = job * c->rows; m < cpu_min((job + 1) * c->rows, p->m); m++) {
        for (int64_t h = 0; h < p->h; h += L1_ELEMENTS) {
            const int64_t count = cpu_min(L1_ELEMENTS, p->h - h);
            sum_rows(c, m, h, count, sum);
            if (p->residual.data) {
                load_row_elements(c, &p->residual, m, h, count, residual);
                for (int64_t i = 0; i < count; i++)
                    sum[i] += residual[i];
            }
            store_elements(c, m, h, count, sum);
        }
    }
}

nk_status cpu_combine(const nk_combine_problem *p, cpu_means means, const nk_exec *exec)
{
    const double of_row = (double)p->h * (double)(p->k + 1);
    combination c = {p, means.path, of_row < JOB_ELEMENTS ? (int64_t)(JOB_ELEMENTS / (of_row + 1)) + 1 : 1};
    return cpu_for_each(exec, nk_ceil_div(p->m, c.rows), means.threads, combine_rows, &c);
}
