/* Chooses how a gemv's work is dealt out: the shape that ends first by a model of what its work takes. */
#include "sm90_gemv_shape.h"
#include "sm90_gemv_memory.h"

/* bf16 does not fit the kernel for one token: bare codes are 2^-126 times their values there, and small products of
 * them would leave fp32. */
sm90_gemv_form sm90_gemv_form_of(const nk_gemv_problem *p)
{
    if (p->a.dtype == NK_BF16) return SM90_GEMV_FEW_BFLOATS;
    return (p->m == 1 ? SM90_GEMV_CODES : SM90_GEMV_FEW_CODES) + (p->a.dtype == NK_F16);
}

/* The low bits of every address of an operand's values and of its scale factors. A stride that leads nowhere may be any
 * number. */
static uint64_t bits_of_data(const nk_operand *o, int64_t rows, int64_t batches)
{
    return (uint64_t)(uintptr_t)o->data | (rows > 1 ? (uint64_t)o->row_stride : 0) |
           (batches > 1 ? (uint64_t)o->batch_stride : 0);
}

static uint64_t bits_of_sf(const nk_operand *o, int64_t rows, int64_t batches)
{
    return (uint64_t)(uintptr_t)o->sf | (rows > 1 && o->sf_layout == NK_SF_LINEAR ? (uint64_t)o->sf_row_stride : 0) |
           (batches > 1 ? (uint64_t)o->sf_batch_stride : 0);
}

sm90_gemv_path sm90_gemv_path_of(const nk_gemv_problem *p)
{
    uint64_t data = bits_of_data(&p->a, p->m, p->l) | bits_of_data(&p->b, p->n, p->l);
    uint64_t sf = bits_of_sf(&p->b, p->n, p->l), token_sf = 0;
    if (p->a.dtype == NK_E2M1X2) token_sf = bits_of_sf(&p->a, p->m, p->l);
    if (p->k % (2 * SM90_GEMV_CHUNK) || data % 16 || sf % 4 || token_sf % 2) return SM90_GEMV_NARROW;
    return p->b.sf_layout == NK_SF_BLOCKED ? SM90_GEMV_BLOCKED : SM90_GEMV_LINEAR;
}

/* A tensor map's strides are 40 bits, and one of zero is not promised to work. */
static bool fits_map(int64_t stride, int64_t count) { return count <= 1 || (stride > 0 && stride < (int64_t)1 << 40); }

static bool strides_fit_maps(const nk_operand *o, int64_t rows, int64_t batches)
{
    return fits_map(o->row_stride, rows) && fits_map(o->batch_stride, batches) &&
           fits_map(o->sf_batch_stride, batches) && (o->sf_layout == NK_SF_BLOCKED || fits_map(o->sf_row_stride, rows));
}

bool sm90_gemv_has_maps(const nk_gemv_problem *p)
{
    return sm90_gemv_form_of(p) == SM90_GEMV_CODES && sm90_gemv_path_of(p) != SM90_GEMV_NARROW && p->k > 0 &&
           p->k % SM90_GEMV_UNIT == 0 && bits_of_sf(&p->b, p->n, p->l) % 16 == 0 &&
           (p->b.sf_layout == NK_SF_LINEAR || p->n % NK_SF_ATOM_ROWS == 0) && strides_fit_maps(&p->b, p->n, p->l);
}

static int32_t team_of(const nk_gemv_problem *p)
{
    return sm90_gemv_form_of(p) == SM90_GEMV_CODES ? SM90_GEMV_TEAM : 1;
}

int32_t sm90_gemv_tile_rows(const nk_gemv_problem *p, bool is_short)
{
    return team_of(p) * SM90_GEMV_OCTET * (is_short ? 1 : 2);
}

static uint32_t start_of(int32_t team, int32_t run, int32_t units)
{
    const int32_t tile = team * run / units;
    if (tile >= SM90_GEMV_MOST_TILES) return sm90_gemv_start(0, SM90_GEMV_MOST_TILES, 0); /* nothing is left */
    return sm90_gemv_start(team * run % units, tile, team - tile * units / run);
}

static int32_t ctas_per_sm(const sm90_gemv_shape *s) { return SM90_GEMV_WARPS / s->warps; }

int32_t sm90_gemv_smem_room(const cuda_gpu *gpu, int32_t per_sm)
{
    int32_t room = gpu->smem_per_sm / per_sm - 1024;
    return room < gpu->smem_per_cta ? room : gpu->smem_per_cta;
}

/* Deals `rows` rows to each cluster; false where shared memory is less than their sums and the tokens take. */
static bool fits(const nk_gemv_problem *p, const cuda_gpu *gpu, int cluster, int64_t places, int64_t rows,
                 sm90_gemv_shape *s)
{
    int64_t units = nk_ceil_div(sm90_gemv_units(p->k), cluster);
    int32_t room = sm90_gemv_smem_room(gpu, ctas_per_sm(s));
    if (units > room / SM90_GEMV_TOKEN_BYTES) return false; /* from here on 32 bits are enough */
    int32_t tile = sm90_gemv_tile_rows(p, s->is_short), tiles = ((int32_t)rows + tile - 1) / tile;
    int32_t ends = ((int32_t)rows + cluster - 1) / cluster, teams = s->warps / team_of(p),
            run = (tiles * (int32_t)units + teams - 1) / teams;
    s->work = (sm90_gemv_work){
        .rows = (int32_t)rows,
        .units = (uint16_t)units,
        .n = (int32_t)p->n,
        .all_places = (int32_t)places,
        .all_units = (uint16_t)sm90_gemv_units(p->k),
        .all_words = (int32_t)(p->k / 8),
        .atoms_bytes = (int32_t)(nk_sf_padded_cols(p->k / NK_SF_VEC) * NK_SF_ATOM_ROWS),
        .run = run > 0 ? run : 1,
        .ends = ends,
        .ends_inverse = sm90_gemv_inverse(ends),
        .cluster = cluster,
        .tokens = (uint16_t)p->m,
    };
    s->clusters = nk_ceil_div(places, rows);
    const int32_t units_of[2] = {(int32_t)units, units ? s->work.all_units % (int32_t)units : 0};
    for (int some = 0; some < 2; some++) { /* all CTAs but a cluster's last with any units, that one */
        if (!units_of[some]) continue;
        int32_t parts = sm90_gemv_teams_of_tile(units_of[some], s->work.run, teams);
        if (parts > s->work.parts) s->work.parts = parts;
        for (int32_t team = 0; team < teams; team++)
            s->starts[team][some] = start_of(team, s->work.run, units_of[some]);
    }
    const int32_t with_another = sm90_gemv_smem_room(gpu, ctas_per_sm(s) + 1);
    const int32_t tokens_bytes = sm90_gemv_form_of(p) == SM90_GEMV_CODES
                                     ? sm90_gemv_code_token_bytes((int32_t)units)
                                     : (int32_t)(p->m * sm90_gemv_token_bytes(units));
    s->smem_bytes =
        sm90_gemv_tokens_at(s->is_tiled, s->warps) + tokens_bytes + sm90_gemv_sums(s->is_tiled, &s->work) * 4;
    if (s->smem_bytes > room) return false;
    if (!s->is_tiled) return true;
    /* Registers allow a third CTA of 8 warps: some SMs would have three and others none. */
    if (s->smem_bytes <= with_another && with_another < room) s->smem_bytes = with_another + 1;
    return (cluster - 1) * (int32_t)units < s->work.all_units; /* every CTA is expected to send sums */
}

#define MORE_WAVES 24 /* of CTAs than there must be, at most: sums of fewer rows need less shared memory */

/* The shape of a launch of CTAs of s->warps warps that make short tiles or not, `cluster` of which share rows, in
 * `more` waves than there must be: rows dealt out evenly, or, fewer clusters, in whole tiles. False where it does not
 * fit. */
static bool shape_of(const nk_gemv_problem *p, const sm90_gemv_clusters *room, int cluster, int more, bool whole,
                     sm90_gemv_shape *s)
{
    const int64_t places = sm90_gemv_places(p->n, p->b.sf_layout == NK_SF_BLOCKED);
    const int64_t tile = sm90_gemv_tile_rows(p, s->is_short), clusters = room->at_once[ctas_per_sm(s) - 1][cluster];
    if (clusters == 0) return false;
    int64_t at_once = clusters / (p->l > 0 ? p->l : 1);
    if (at_once < 1) at_once = 1;
    int64_t least = nk_ceil_div(places, at_once * SM90_GEMV_ROWS);
    int64_t rows = nk_ceil_div(places, at_once * ((least > 0 ? least : 1) + more));
    if (whole) rows = nk_ceil_div(rows, tile) * tile;
    return rows <= SM90_GEMV_ROWS && fits(p, room->gpu, cluster, places, rows > 0 ? rows : 1, s);
}

/* Cycles, fitted to an H200's times. NVFP4 tokens one by one: 36 matrices in up to 50 shapes each, the picked one takes
 * 0.4 % more than the best on average, 2.5 % at most; with tensor maps, 31 matrices, 0.8 % and 8 %. The others: 70
 * cases of 10 matrices and 1 to 8 tokens in up to 24 shapes, and 1.1 % and 7 %; bf16 was not timed and takes fp16's. */
typedef struct costs {
    double tall_step, short_step; /* of a team beside all others of an SM: latencies before all */
    double step_of_sm;            /* of any of its steps: what it issues */
    double codes, halves;         /* of 1000 bytes of tokens in an SM's shared memory that come as such */
    double solo;                  /* of a beginning and an end that no other CTA of the SM fills */
    double cluster, of_each;      /* sums go to other CTAs, and all must have room at once */
    double ragged;                /* of rows that are no whole tiles */
    double of_mb;                 /* of the matrix: where memory is what takes time, this kernel takes more of it */
} costs;

static const costs one_nvfp4_token = {
    .tall_step = 1250, .short_step = 873, .solo = 505, .cluster = 1073, .ragged = 1060};
static const costs one_nvfp4_token_tiled = {.tall_step = 900, .solo = 525, .cluster = 100, .of_mb = 14};
static const costs one_token = {.step_of_sm = 82, .solo = 380, .cluster = 194, .of_each = 106};
static const costs few_tokens = {
    .step_of_sm = 110, .codes = 26, .halves = 57, .solo = 945, .cluster = 567, .of_each = 249};

#define BYTES_PER_CYCLE 22.9 /* of an SM, from memory */

static const costs *costs_of(const nk_gemv_problem *p, const sm90_gemv_shape *s)
{
    const sm90_gemv_form form = sm90_gemv_form_of(p);
    if (s->is_tiled) return &one_nvfp4_token_tiled;
    return form == SM90_GEMV_CODES ? &one_nvfp4_token : form == SM90_GEMV_HALVES ? &one_token : &few_tokens;
}

static double cycles_of(const nk_gemv_problem *p, const sm90_gemv_clusters *room, const sm90_gemv_shape *s)
{
    const costs *c = costs_of(p, s);
    const int32_t per_sm = ctas_per_sm(s), cluster = s->work.cluster, rows = s->work.rows, units = s->work.units;
    const int32_t tile = sm90_gemv_tile_rows(p, s->is_short), tiles = (rows + tile - 1) / tile;
    const int64_t waves = nk_ceil_div(p->l * s->clusters, room->at_once[per_sm - 1][cluster]);
    const double of_sm = (double)per_sm * units;
    const double memory = of_sm * rows * SM90_GEMV_UNIT * 9 / 16 / BYTES_PER_CYCLE;
    const double steps = s->work.run * (s->is_short ? c->short_step : c->tall_step) + of_sm * tiles * c->step_of_sm;
    const double mb = (double)p->l * (double)p->n * (double)p->k * 9 / 16 / 1e6;
    const double tokens = of_sm * (double)p->m * SM90_GEMV_TOKEN_BYTES / 1000;
    double cycles = steps > memory ? steps : memory;
    cycles += tokens * (p->a.dtype == NK_E2M1X2 ? c->codes : c->halves);
    if (cluster > 1) cycles += c->cluster + cluster * c->of_each;
    if (per_sm == 1) cycles += c->solo;
    if (rows % tile) cycles += c->ragged;
    return (double)waves * cycles + mb * c->of_mb;
}

/* In `more` waves than there must be. Only one NVFP4 token has kernels for short tiles and by tensor maps, and tiles
 * that are large. */
static void find_in_waves(const nk_gemv_problem *p, const sm90_gemv_clusters *room, int more, sm90_gemv_shape *best)
{
    const bool codes = sm90_gemv_form_of(p) == SM90_GEMV_CODES, narrow = sm90_gemv_path_of(p) == SM90_GEMV_NARROW;
    const int choices = !codes ? 2 : sm90_gemv_has_maps(p) ? 16 : 8;
    double least = 0;
    for (int cluster = 1; cluster <= SM90_GEMV_CLUSTER; cluster++) {
        for (int choice = 0; choice < choices; choice++) {
            const bool whole = choice & 4;
            sm90_gemv_shape s = {.warps = choice & 1 ? SM90_GEMV_WARPS : SM90_GEMV_WARPS / 2,
                                 .is_short = choice & 2,
                                 .is_tiled = choice & 8};
            if ((codes && narrow && !s.is_short) || (s.is_tiled && (!whole || s.is_short))) continue;
            if (!shape_of(p, room, cluster, more, whole, &s)) continue;
            double cycles = cycles_of(p, room, &s);
            if (best->warps && cycles >= least) continue;
            *best = s;
            least = cycles;
        }
    }
}

bool sm90_gemv_find_shape(const nk_gemv_problem *p, const sm90_gemv_clusters *room, sm90_gemv_shape *best)
{
    *best = (sm90_gemv_shape){0};
    for (int more = 0; more <= MORE_WAVES && !best->warps; more++)
        find_in_waves(p, room, more, best);
    return best->warps;
}
