/* grouped_gemm: every group is a gemm of its own. In the contiguous form expert g has tokens offsets[g] ..
 * offsets[g+1], or those that rows of these numbers name. */
#include "cpu_backend.h"

#include "cpu_operand.h"
#include "cpu_pool.h"
#include "cpu_tile.h"

typedef struct grouped {
    const nk_grouped_gemm_problem *problem;
    cpu_means means;
    int threads;
} grouped;

/* Group g's rows of a. Offsets are read once for each use. */
static cpu_rows rows_of(const nk_grouped_gemm_problem *p, int64_t g)
{
    return p->list ? (cpu_rows){0, p->list[g].m} : cpu_rows_of_expert(p->offsets, g, p->all.m);
}

static cpu_tiling tiling_of(const grouped *c, int64_t g, cpu_rows rows)
{
    const nk_gemm_problem *gemm = c->problem->list ? &c->problem->list[g] : &c->problem->all;
    return cpu_tiling_of(1, rows.end - rows.begin, gemm->n, c->threads);
}

/* Points a and sfa to an expert's rows. A blocked sfa begins for it at row `atom_row` of atoms. False where there are
 * not that many: offsets have changed since they were checked. */
static bool point_tokens(const nk_grouped_gemm_problem *p, cpu_rows rows, int64_t atom_row, nk_gemm_problem *gemm)
{
    gemm->a.data += rows.begin * gemm->a.row_stride;
    if (gemm->a.sf && gemm->a.sf_layout == NK_SF_BLOCKED) {
        int64_t atom_row_bytes = nk_sf_padded_cols(gemm->k / NK_SF_VEC) * NK_SF_ATOM_ROWS;
        if ((atom_row + nk_ceil_div(gemm->m, NK_SF_ATOM_ROWS)) * atom_row_bytes > p->a_sf_bytes) return false;
        gemm->a.sf += atom_row * atom_row_bytes;
    } else if (gemm->a.sf) {
        gemm->a.sf += rows.begin * gemm->a.sf_row_stride;
    }
    return true;
}

/* Expert g as a gemm; false as above. Where rows name tokens, a and sfa are those of all. */
static bool find_expert(const nk_grouped_gemm_problem *p, int64_t g, cpu_rows rows, int64_t atom_row,
                        nk_gemm_problem *gemm)
{
    *gemm = p->all;
    gemm->m = rows.end - rows.begin;
    if (!p->rows.data && !point_tokens(p, rows, atom_row, gemm)) return false;
    gemm->b.data += g * gemm->b.batch_stride;
    if (gemm->b.sf) gemm->b.sf += g * gemm->b.sf_batch_stride;
    gemm->d.data += rows.begin * gemm->d.row_stride;
    if (gemm->alpha.data) gemm->alpha.data += g * gemm->alpha.group_stride;
    if (gemm->bias.data) gemm->bias.data += g * gemm->bias.group_stride;
    return true;
}

static void run_tile_of(const grouped *c, int64_t g, cpu_rows rows, int64_t atom_row, cpu_tile_coordinates at)
{
    const nk_grouped_gemm_problem *p = c->problem;
    nk_gemm_problem gemm;
    if (p->list) {
        cpu_gemm_tile(c->means, &p->list[g], NULL, at);
        return;
    }
    if (!find_expert(p, g, rows, atom_row, &gemm)) return;
    int64_t tokens[CPU_TILE_M];
    for (int64_t i = 0; p->rows.data && i < at.mb; i++) {
        int32_t value = read_once(&p->rows.data[rows.begin + at.m0 + i]);
        tokens[i] = nk_token_of(value, p->rows.per_token, p->rows.tokens);
    }
    cpu_gemm_tile(c->means, &gemm, p->rows.data ? tokens : NULL, at);
}

/* Tiles of all groups are numbered in turn. */
static void run_tile(void *context, int64_t tile)
{
    const grouped *c = context;
    int64_t atom_row = 0;
    for (int64_t g = 0; g < c->problem->groups; g++) {
        cpu_rows rows = rows_of(c->problem, g);
        cpu_tiling tiling = tiling_of(c, g, rows);
        int64_t tiles = cpu_tile_count(&tiling);
        if (tile < tiles) {
            run_tile_of(c, g, rows, atom_row, cpu_tile_at(&tiling, tile));
            return;
        }
        tile -= tiles;
        atom_row += nk_ceil_div(rows.end - rows.begin, NK_SF_ATOM_ROWS);
    }
}

nk_status cpu_grouped_gemm(const nk_grouped_gemm_problem *p, cpu_means means, const nk_exec *exec)
{
    double products = 0;
    for (int64_t g = 0; g < p->groups; g++) {
        const nk_gemm_problem *gemm = p->list ? &p->list[g] : &p->all;
        cpu_rows rows = rows_of(p, g);
        products += (double)(rows.end - rows.begin) * (double)gemm->n * (double)gemm->k;
    }
    grouped c = {p, means, cpu_worthwhile_threads(products, means.threads)};
    int64_t tiles = 0;
    for (int64_t g = 0; g < p->groups; g++) {
        cpu_tiling tiling = tiling_of(&c, g, rows_of(p, g));
        tiles += cpu_tile_count(&tiling);
    }
    return cpu_for_each(exec, tiles, c.threads, run_tile, &c);
}
