/* grouped_gemm: every group is a gemm of its own. In the contiguous form expert g has tokens offsets[g] ..
 * offsets[g+1], or those that rows of these numbers name. grouped_dual_gemm: of these tokens the products with an
 * expert's gates and with its ups. The results of experts are 16-bit or fp32 rows, or codes and scale factors by the
 * formula of cpu_quantize.c. */
#include "cpu_backend.h"

#include "cpu_operand.h"
#include "cpu_pool.h"
#include "cpu_tile.h"

/* Of a list of many groups, a search for a tile's group begins at one of these. */
#define LANDMARKS 256

typedef struct grouped {
    const nk_grouped_gemm_problem *problem;
    const nk_grouped_dual_gemm_problem *dual; /* whose gates are `problem`, or NULL */
    cpu_means means;
    int threads;
    int64_t apart;            /* groups from one landmark to the next */
    int64_t tiles[LANDMARKS]; /* of all groups before a landmark */
} grouped;

/* Group g's rows of a. Offsets are read once for each use. */
static cpu_rows expert_rows(const nk_grouped_gemm_problem *p, int64_t g)
{
    return p->list ? (cpu_rows){0, p->list[g].m} : cpu_rows_of_expert(p->offsets, g, p->all.m);
}

static cpu_tiling tiling_of(const grouped *c, int64_t g, cpu_rows rows)
{
    const nk_gemm_problem *gemm = c->problem->list ? &c->problem->list[g] : &c->problem->all;
    return cpu_tiling_of(1, rows.end - rows.begin, gemm->n, c->threads);
}

/* Points a, sfa and row_scale to an expert's rows. A blocked sfa begins for it at row `atom_row` of atoms. False where
 * there are not that many: offsets have changed since they were checked. */
static bool point_to_tokens(const nk_grouped_gemm_problem *p, cpu_rows rows, int64_t atom_row, nk_gemm_problem *gemm)
{
    gemm->a.data += rows.begin * gemm->a.row_stride;
    if (gemm->row_scale.data) gemm->row_scale.data += rows.begin * gemm->row_scale.stride;
    if (gemm->a.sf && gemm->a.sf_layout == NK_SF_BLOCKED) {
        int64_t atom_row_bytes = nk_sf_padded_cols(gemm->k / NK_SF_VEC) * NK_SF_ATOM_ROWS;
        if ((atom_row + nk_ceil_div(gemm->m, NK_SF_ATOM_ROWS)) * atom_row_bytes > p->a_sf_bytes) return false;
        gemm->a.sf += atom_row * atom_row_bytes;
    } else if (gemm->a.sf) {
        gemm->a.sf += rows.begin * gemm->a.sf_row_stride;
    }
    return true;
}

/* Expert g as a gemm; false as above. Where rows name tokens, a, sfa and row_scale are those of all. */
static bool enter_expert(const nk_grouped_gemm_problem *p, int64_t g, cpu_rows rows, int64_t atom_row,
                         nk_gemm_problem *gemm)
{
    *gemm = p->all;
    gemm->m = rows.end - rows.begin;
    if (!p->rows.data && !point_to_tokens(p, rows, atom_row, gemm)) return false;
    gemm->b.data += g * gemm->b.batch_stride;
    if (gemm->b.sf) gemm->b.sf += g * gemm->b.sf_batch_stride;
    gemm->d.data += rows.begin * gemm->d.row_stride;
    if (gemm->alpha.data) gemm->alpha.data += g * gemm->alpha.group_stride;
    if (gemm->bias.data) gemm->bias.data += g * gemm->bias.group_stride;
    return true;
}

/* h = fl(act(h) * u) of a row that is encoded, or act(h) where u is NULL: ones round nothing. silu is nk_silu. */
static void activate_encoded_row(const cpu_path *path, nk_activation activation, int64_t count, float *h, float *u)
{
    float ones[CPU_TILE_N];
    for (int64_t i = 0; !u && i < count; i++)
        ones[i] = 1;
    if (!u) u = ones;
    if (activation.kind != NK_SILU) {
        path->activate(activation, h, u, count);
        return;
    }
    path->limit(activation.limit, h, u, count);
    path->gate(h, u, count);
}

/* Codes and scale factors of a tile of fl(act(h) * u), which becomes h, or of act(h) where u is NULL. `first` is the
 * expert's first row. A tile begins and ends between two blocks. */
static void encode_tile(const grouped *c, int64_t first, cpu_tile_coordinates at, cpu_tile h, cpu_tile u)
{
    const cpu_path *path = c->means.path;
    const nk_encoded_output *to = &c->problem->encoded;
    const nk_activation activation = c->dual ? c->dual->activation : c->problem->activation;
    const cpu_encoder encoder = cpu_encoder_of(&to->global_scale);
    uint8_t *codes = to->codes + (first + at.m0) * to->codes_row_stride + at.n0 / 2;
    uint8_t *sf = to->sf + (first + at.m0) * to->sf_row_stride + at.n0 / NK_SF_VEC;
    for (int64_t i = 0; i < at.mb; i++, codes += to->codes_row_stride, sf += to->sf_row_stride) {
        activate_encoded_row(path, activation, at.nb, h[i], u ? u[i] : NULL);
        path->encode(&encoder, (const uint8_t *)h[i], NK_F32, at.nb / NK_SF_VEC, codes, sf);
    }
}

static void run_encoded_tile(const grouped *c, int64_t first, const nk_gemm_problem *p, const int64_t *rows_of_a,
                             cpu_tile_coordinates at)
{
    cpu_tile h;
    cpu_scaled_tile(c->means, p, rows_of_a, at, h);
    encode_tile(c, first, at, h, NULL);
}

/* Blocked scale factors of ups follow from their rows in the matrix: see nk_grouped_dual_gemm_problem. */
static void run_gated_tile(const grouped *c, int64_t g, int64_t first, const nk_gemm_problem *gates,
                           const int64_t *rows_of_a, cpu_tile_coordinates at)
{
    const cpu_path *path = c->means.path;
    cpu_tile h, u;
    cpu_tile_coordinates at_ups = at;
    nk_operand ups = gates->b;
    nk_alpha alpha_ups = c->dual->alpha_ups;
    nk_bias bias_ups = c->dual->bias_ups;
    if (ups.sf_layout == NK_SF_BLOCKED) {
        at_ups.n0 += gates->n;
    } else {
        ups = c->dual->ups;
        ups.data += g * ups.batch_stride;
        ups.sf += g * ups.sf_batch_stride;
    }
    if (alpha_ups.data) alpha_ups.data += g * alpha_ups.group_stride;
    if (bias_ups.data) bias_ups.data += g * bias_ups.group_stride;
    cpu_sum_tile(c->means, &gates->a, rows_of_a, &gates->b, gates->k, at, h);
    cpu_sum_tile(c->means, &gates->a, rows_of_a, &ups, gates->k, at_ups, u);
    cpu_scale_rows(&gates->row_scale, rows_of_a, at, h);
    cpu_scale_rows(&gates->row_scale, rows_of_a, at, u);
    cpu_scale_tile(path, &gates->alpha, &gates->bias, at, h);
    cpu_scale_tile(path, &alpha_ups, &bias_ups, at, u);
    if (c->problem->encoded.wanted) {
        encode_tile(c, first, at, h, u);
    } else {
        cpu_gate_tile(path, c->dual->activation, at, h, u);
        cpu_store_tile(path, &gates->d, at, h);
    }
}

static void run_tile_of(const grouped *c, int64_t g, cpu_rows rows, int64_t atom_row, cpu_tile_coordinates at)
{
    const nk_grouped_gemm_problem *p = c->problem;
    const nk_activation *activation = p->is_activated ? &p->activation : NULL;
    nk_gemm_problem gemm;
    if (p->list) {
        cpu_gemm_tile(c->means, &p->list[g], activation, NULL, at);
        return;
    }
    if (!enter_expert(p, g, rows, atom_row, &gemm)) return;
    int64_t tokens[CPU_TILE_M];
    for (int64_t i = 0; p->rows.data && i < at.mb; i++) {
        int32_t value = read_once(&p->rows.data[rows.begin + at.m0 + i]);
        tokens[i] = nk_token_of(value, p->rows.per_token, p->rows.tokens);
    }
    const int64_t *rows_of_a = p->rows.data ? tokens : NULL;
    if (c->dual)
        run_gated_tile(c, g, rows.begin, &gemm, rows_of_a, at);
    else if (p->encoded.wanted)
        run_encoded_tile(c, rows.begin, &gemm, rows_of_a, at);
    else
        cpu_gemm_tile(c->means, &gemm, activation, rows_of_a, at);
}

/* The group at the last landmark not beyond *tile, which becomes a number among the tiles from there on. Experts are
 * searched from the first: their offsets, which may change meanwhile, say where scale factors begin. */
static int64_t landmark_before(const grouped *c, int64_t *tile)
{
    int64_t i = 0;
    if (!c->problem->list) return 0;
    while (i + 1 < LANDMARKS && (i + 1) * c->apart < c->problem->groups && c->tiles[i + 1] <= *tile)
        i++;
    *tile -= c->tiles[i];
    return i * c->apart;
}

/* Tiles of all groups are numbered in turn. */
static void multiply_experts_tile(void *context, int64_t tile)
{
    const grouped *c = context;
    int64_t atom_row = 0;
    for (int64_t g = landmark_before(c, &tile); g < c->problem->groups; g++) {
        cpu_rows rows = expert_rows(c->problem, g);
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

static nk_status run_groups(const nk_grouped_gemm_problem *p, const nk_grouped_dual_gemm_problem *dual, cpu_means means,
                            const nk_exec *exec)
{
    double multiply_adds = 0;
    for (int64_t g = 0; g < p->groups; g++) {
        const nk_gemm_problem *gemm = p->list ? &p->list[g] : &p->all;
        cpu_rows rows = expert_rows(p, g);
        multiply_adds += (double)(rows.end - rows.begin) * (double)gemm->n * (double)gemm->k * (dual ? 2 : 1);
    }
    grouped c;
    c.problem = p;
    c.dual = dual;
    c.means = means;
    c.threads = (int)cpu_min(cpu_worthwhile_threads(multiply_adds), means.threads);
    c.apart = nk_ceil_div(p->groups, LANDMARKS);
    int64_t tiles = 0;
    for (int64_t g = 0; g < p->groups; g++) {
        cpu_tiling tiling = tiling_of(&c, g, expert_rows(p, g));
        if (g % c.apart == 0) c.tiles[g / c.apart] = tiles;
        tiles += cpu_tile_count(&tiling);
    }
    return cpu_for_each(exec, tiles, c.threads, multiply_experts_tile, &c);
}

nk_status cpu_grouped_gemm(const nk_grouped_gemm_problem *p, cpu_means means, const nk_exec *exec)
{
    return run_groups(p, NULL, means, exec);
}

nk_status cpu_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, cpu_means means, const nk_exec *exec)
{
    return run_groups(&p->gates, p, means, exec);
}
