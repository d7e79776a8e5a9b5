/* grouped_gemm: every group is a gemm of its own. In the contiguous form expert g has tokens offsets[g] ..
 * offsets[g+1]. */
#include "cpu_backend.h"

#include "cpu_pool.h"
#include "cpu_tile.h"

typedef struct grouped {
    const nk_grouped_gemm_problem *problem;
    cpu_means means;
    int threads;
} grouped;

/* Expert g as a gemm. A blocked sfa begins for this expert at row `atom_row` of atoms. */
static nk_gemm_problem expert(const nk_grouped_gemm_problem *p, int64_t g, int64_t atom_row)
{
    nk_gemm_problem gemm = p->all;
    int64_t row = p->offsets[g];
    gemm.m = p->offsets[g + 1] - row;
    gemm.a.data += row * gemm.a.row_stride;
    if (gemm.a.sf) {
        int64_t atom_row_bytes = nk_sf_padded_cols(gemm.k / NK_SF_VEC) * NK_SF_ATOM_ROWS;
        gemm.a.sf += gemm.a.sf_layout == NK_SF_BLOCKED ? atom_row * atom_row_bytes : row * gemm.a.sf_row_stride;
    }
    gemm.b.data += g * gemm.b.batch_stride;
    if (gemm.b.sf) gemm.b.sf += g * gemm.b.sf_batch_stride;
    gemm.d.data += row * gemm.d.row_stride;
    if (gemm.alpha.data) gemm.alpha.data += g * gemm.alpha.group_stride;
    if (gemm.bias.data) gemm.bias.data += g * gemm.bias.group_stride;
    return gemm;
}

static int64_t rows_of(const nk_grouped_gemm_problem *p, int64_t g)
{
    return p->list ? p->list[g].m : p->offsets[g + 1] - p->offsets[g];
}

static cpu_tiling tiling_of(const grouped *c, int64_t g)
{
    const nk_grouped_gemm_problem *p = c->problem;
    return cpu_tiling_of(p->list ? p->list[g].l : 1, rows_of(p, g), p->list ? p->list[g].n : p->all.n, c->threads);
}

static void run_tile_of(const grouped *c, int64_t g, int64_t atom_row, cpu_tile_coordinates at)
{
    if (c->problem->list) {
        cpu_gemm_tile(c->means, &c->problem->list[g], at);
    } else {
        nk_gemm_problem gemm = expert(c->problem, g, atom_row);
        cpu_gemm_tile(c->means, &gemm, at);
    }
}

/* Tiles of all groups are numbered in turn. */
static void run_tile(void *context, int64_t tile)
{
    const grouped *c = context;
    const nk_grouped_gemm_problem *p = c->problem;
    int64_t atom_row = 0;
    for (int64_t g = 0; g < p->groups; g++) {
        cpu_tiling tiling = tiling_of(c, g);
        int64_t tiles = cpu_tile_count(&tiling);
        if (tile < tiles) {
            run_tile_of(c, g, atom_row, cpu_tile_at(&tiling, tile));
            return;
        }
        tile -= tiles;
        atom_row += nk_ceil_div(rows_of(p, g), NK_SF_ATOM_ROWS);
    }
}

void cpu_grouped_gemm(const nk_grouped_gemm_problem *p, cpu_means means)
{
    double products = 0;
    for (int64_t g = 0; g < p->groups; g++) {
        const nk_gemm_problem *gemm = p->list ? &p->list[g] : &p->all;
        products += (double)rows_of(p, g) * (double)gemm->n * (double)gemm->k;
    }
    grouped c = {p, means, cpu_worthwhile_threads(products, means.threads)};
    int64_t tiles = 0;
    for (int64_t g = 0; g < p->groups; g++) {
        cpu_tiling tiling = tiling_of(&c, g);
        tiles += cpu_tile_count(&tiling);
    }
    cpu_for_each(tiles, c.threads, run_tile, &c);
}
