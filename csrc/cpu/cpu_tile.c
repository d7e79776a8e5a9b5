/* How a problem becomes tiles, and a tile's way from sums to the output. */
#include "cpu_tile.h"

#include "cpu_operand.h"
#include "cpu_pool.h"

#define NARROWEST 32           /* columns of a tile */
#define TILES_PER_THREAD 4     /* at least, if tiles can be that narrow: threads end at about the same time */
#define WORTH_A_THREAD 500000. /* multiply-adds: they take about as long as waking a thread */

cpu_tiling cpu_tiling_of(int64_t l, int64_t m, int64_t n, int threads)
{
    cpu_tiling tiling = {l, m, n, CPU_TILE_N};
    while (threads > 1 && tiling.tile_n > NARROWEST && cpu_tile_count(&tiling) < TILES_PER_THREAD * threads)
        tiling.tile_n /= 2;
    return tiling;
}

/* A shift, since the width of a tile is a power of two. */
static int64_t tiles_across(const cpu_tiling *t)
{
    return (t->n + t->tile_n - 1) >> __builtin_ctzll((unsigned long long)t->tile_n);
}

int64_t cpu_tile_count(const cpu_tiling *t) { return t->l * nk_ceil_div(t->m, CPU_TILE_M) * tiles_across(t); }

/* For numbers >= 0. On many processors a 64-bit division takes several times as long as a 32-bit one. */
static int64_t divide(int64_t x, int64_t y)
{
    return (x | y) <= UINT32_MAX ? (int64_t)((uint32_t)x / (uint32_t)y) : x / y;
}

/* Tiles of the same columns have successive numbers, so that B stays in the cache. */
cpu_tile_coordinates cpu_tile_at(const cpu_tiling *t, int64_t tile)
{
    int64_t down = nk_ceil_div(t->m, CPU_TILE_M), across = tiles_across(t);
    int64_t column = divide(tile, down), l = divide(column, across);
    int64_t m0 = (tile - column * down) * CPU_TILE_M, n0 = (column - l * across) * t->tile_n;
    return (cpu_tile_coordinates){
        .l = l,
        .m0 = m0,
        .mb = cpu_min(CPU_TILE_M, t->m - m0),
        .n0 = n0,
        .nb = cpu_min(t->tile_n, t->n - n0),
    };
}

int cpu_worthwhile_threads(double multiply_adds)
{
    double most = multiply_adds / WORTH_A_THREAD;
    return most < 1 ? 1 : most < CPU_MAX_THREADS ? (int)most : CPU_MAX_THREADS;
}

void cpu_sum_tile(cpu_means means, const nk_operand *a, const int64_t *rows_of_a, const nk_operand *b, int64_t k,
                  cpu_tile_coordinates at, cpu_tile acc)
{
    cpu_tile_gemm tile = {
        .a = a, .b = b, .l = at.l, .m0 = at.m0, .mb = at.mb, .n0 = at.n0, .nb = at.nb, .k = k, .rows_of_a = rows_of_a};
    if (at.mb == 1 && b->dtype == NK_E2M1X2 && !means.batch_invariant && means.path->gemv)
        means.path->gemv(&tile, acc[0]);
    else
        means.path->gemm_tile(&tile, acc);
}

void cpu_scale_rows(const nk_row_scale *row_scale, const int64_t *rows_of_a, cpu_tile_coordinates at, cpu_tile acc)
{
    if (!row_scale->data) return;
    for (int64_t i = 0; i < at.mb; i++) {
        const int64_t token = rows_of_a ? rows_of_a[i] : at.m0 + i;
        const float factor = row_scale->data[at.l * row_scale->batch_stride + token * row_scale->stride];
        for (int64_t j = 0; j < at.nb; j++)
            acc[i][j] *= factor;
    }
}

void cpu_scale_tile(const cpu_path *path, const nk_alpha *alpha, const nk_bias *bias, cpu_tile_coordinates at,
                    cpu_tile acc)
{
    float factor[CPU_TILE_N], addend[CPU_TILE_N];
    bool biased = bias && bias->data;
    for (int64_t j = 0; j < at.nb; j++) {
        factor[j] = cpu_alpha_at(alpha, at.n0 + j);
        if (biased) addend[j] = cpu_load_float(bias->data + (at.n0 + j) * bias->stride, bias->dtype);
    }
    for (int64_t i = 0; i < at.mb; i++)
        path->scale(acc[i], factor, biased ? addend : NULL, at.nb);
}

void cpu_store_tile(const cpu_path *path, const nk_output *d, cpu_tile_coordinates at, cpu_tile acc)
{
    int64_t size = float_bytes(d->dtype);
    uint8_t *to = d->data + at.l * d->batch_stride + at.m0 * d->row_stride + at.n0 * d->col_stride;
    if (d->col_stride == size || at.nb == 1) {
        for (int64_t i = 0; i < at.mb; i++)
            path->store(acc[i], d->dtype, at.nb, to + i * d->row_stride);
        return;
    }
    for (int64_t j = 0; j < at.nb; j++) {
        float column[CPU_TILE_M];
        for (int64_t i = 0; i < at.mb; i++)
            column[i] = acc[i][j];
        if (d->row_stride == size) {
            path->store(column, d->dtype, at.mb, to + j * d->col_stride);
        } else {
            for (int64_t i = 0; i < at.mb; i++)
                cpu_store_float(to + i * d->row_stride + j * d->col_stride, d->dtype, column[i]);
        }
    }
}
