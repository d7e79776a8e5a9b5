/* Chooses a gemv's schedule by cost. */
#include "sm90_gemv_scheduler.h"

#include "cuda/cuda_encode.h"
#include "sm90_gemv_costs.h"
#include "sm90_gemv_memory.h"

sm90_gemv_kind sm90_gemv_kind_of(const nk_gemv_problem *p)
{
    const sm90_gemv_kind codes = p->m == 1 ? SM90_GEMV_CODES : SM90_GEMV_FEW_CODES;
    return codes + (p->a.dtype == NK_F16 ? 1 : p->a.dtype == NK_BF16 ? 2 : 0);
}

sm90_gemv_access sm90_gemv_access_of(const nk_gemv_problem *p)
{
    const bool is_aligned = cuda_are_data_aligned(&p->a, p->m, p->l, 16) &&
                            cuda_are_data_aligned(&p->b, p->n, p->l, 16) && cuda_are_sf_aligned(&p->b, p->n, p->l, 4) &&
                            (p->a.dtype != NK_E2M1X2 || cuda_are_sf_aligned(&p->a, p->m, p->l, 2));
    if (p->k % (2 * SM90_GEMV_CHUNK) || !is_aligned) return SM90_GEMV_NARROW;
    return p->b.sf_layout == NK_SF_BLOCKED ? SM90_GEMV_BLOCKED : SM90_GEMV_LINEAR;
}

static bool strides_fit_maps(const nk_operand *o, int64_t rows, int64_t batches)
{
    return cuda_is_stride(o->row_stride, rows) && cuda_is_stride(o->batch_stride, batches) &&
           cuda_is_stride(o->sf_batch_stride, batches) &&
           (o->sf_layout == NK_SF_BLOCKED || cuda_is_stride(o->sf_row_stride, rows));
}

bool sm90_gemv_has_maps(const nk_gemv_problem *p)
{
    return sm90_gemv_kind_of(p) == SM90_GEMV_CODES && sm90_gemv_access_of(p) != SM90_GEMV_NARROW && p->k > 0 &&
           p->k % SM90_GEMV_STEP == 0 && cuda_are_sf_aligned(&p->b, p->n, p->l, 16) &&
           (p->b.sf_layout == NK_SF_LINEAR || p->n % NK_SF_ATOM_ROWS == 0) && strides_fit_maps(&p->b, p->n, p->l);
}

static int32_t warps_of_consumer(sm90_gemv_kind kind)
{
    return kind == SM90_GEMV_CODES ? SM90_GEMV_WARPGROUP_WARPS : 1;
}

int32_t sm90_gemv_tile_rows(sm90_gemv_kind kind, bool is_short)
{
    return warps_of_consumer(kind) * SM90_GEMV_M8 * (is_short ? 1 : 2);
}

/* Rows whose epilogue one CTA must run together: a tile's with two matrices, as it has both rows of a feature. Of
 * experts, also all features of a scale-factor block, which encoding needs. */
static int32_t epilogue_granularity(const sm90_gemv_variant *f, int32_t tile)
{
    return f->is_dual && f->has_experts ? 2 * NK_SF_VEC : f->is_dual ? tile : 1;
}

static uint32_t start_of(int32_t consumer, int32_t steps_per_consumer, int32_t k_steps)
{
    const int32_t tile = consumer * steps_per_consumer / k_steps;
    if (tile >= SM90_GEMV_MAX_TILES) return sm90_gemv_start(0, SM90_GEMV_MAX_TILES, 0); /* no step is left */
    return sm90_gemv_start(consumer * steps_per_consumer % k_steps, tile,
                           consumer - tile * k_steps / steps_per_consumer);
}

static int32_t ctas_of_sm(const sm90_gemv_schedule *s) { return SM90_GEMV_WARPS / s->warps; }

/* Gives `rows` positions to each cluster. False if shared memory has no room for their sums and the tokens. */
static bool schedule_rows(const nk_gemv_problem *p, const cuda_gpu *gpu, int cluster, int64_t positions, int64_t rows,
                          sm90_gemv_schedule *s)
{
    int64_t k_steps = nk_ceil_div(sm90_gemv_k_steps(p->k), cluster);
    int32_t room = cuda_smem_per_cta(gpu, ctas_of_sm(s));
    if (k_steps > room / SM90_GEMV_TOKEN_STEP_BYTES) return false; /* from here on 32 bits are enough */
    const sm90_gemv_kind kind = s->variant.kind;
    int32_t tile = sm90_gemv_tile_rows(kind, s->is_short), tiles = ((int32_t)rows + tile - 1) / tile;
    const int32_t granularity = epilogue_granularity(&s->variant, tile);
    int32_t epilogue_rows = (((int32_t)rows + cluster - 1) / cluster + granularity - 1) / granularity * granularity,
            consumers = s->warps / warps_of_consumer(kind),
            steps_per_consumer = (tiles * (int32_t)k_steps + consumers - 1) / consumers;
    s->scheduler = (sm90_gemv_scheduler){
        .rows = (int32_t)rows,
        .k_steps = (uint16_t)k_steps,
        .n = (int32_t)p->n,
        .all_positions = (int32_t)positions,
        .all_k_steps = (uint16_t)sm90_gemv_k_steps(p->k),
        .all_words = (int32_t)(p->k / 8),
        .atoms_bytes = (int32_t)(nk_sf_padded_cols(p->k / NK_SF_VEC) * NK_SF_ATOM_ROWS),
        .steps_per_consumer = steps_per_consumer > 0 ? steps_per_consumer : 1,
        .epilogue_rows = epilogue_rows,
        .epilogue_rows_inverse = sm90_gemv_inverse(epilogue_rows),
        .cluster = cluster,
        .tokens = (uint16_t)p->m,
    };
    s->clusters = nk_ceil_div(positions, rows);
    const int32_t k_steps_of[2] = {(int32_t)k_steps, k_steps ? s->scheduler.all_k_steps % (int32_t)k_steps : 0};
    /* 0: CTAs with all their K steps. 1: the last CTA of a cluster, which may have fewer. */
    for (int some = 0; some < 2; some++) {
        if (!k_steps_of[some]) continue;
        int32_t split_k = sm90_gemv_consumers_of_tile(k_steps_of[some], s->scheduler.steps_per_consumer, consumers);
        if (split_k > s->scheduler.split_k) s->scheduler.split_k = split_k;
        for (int32_t consumer = 0; consumer < consumers; consumer++)
            s->starts[consumer][some] = start_of(consumer, s->scheduler.steps_per_consumer, k_steps_of[some]);
    }
    const int32_t with_another = cuda_smem_per_cta(gpu, ctas_of_sm(s) + 1);
    const int32_t tokens_bytes = kind == SM90_GEMV_CODES ? sm90_gemv_e4m3_token_bytes((int32_t)k_steps)
                                                         : (int32_t)(p->m * sm90_gemv_token_bytes(k_steps));
    s->smem_bytes = sm90_gemv_tokens_at(s->by_tensor_map, s->warps) + tokens_bytes +
                    sm90_gemv_sum_count(s->by_tensor_map, &s->scheduler) * 4;
    if (s->smem_bytes > room) return false;
    if (!s->by_tensor_map) return true;
    /* Registers allow a third CTA of 8 warps, but then some SMs would have three and others none. */
    if (s->smem_bytes <= with_another && with_another < room) s->smem_bytes = with_another + 1;
    return (cluster - 1) * (int32_t)k_steps <
           s->scheduler.all_k_steps; /* every CTA must have K steps, since the owners of rows wait for its sums */
}

#define MORE_WAVES 24 /* at most, beyond those that are needed: with fewer rows, sums need less shared memory */

/* A schedule for clusters of `cluster` CTAs, in `more` waves than are needed. Rows are divided evenly or, among fewer
 * clusters, in whole tiles. False if it does not fit. */
static bool schedule_of(const nk_gemv_problem *p, const sm90_gemv_clusters *room, int cluster, int more, bool whole,
                        sm90_gemv_schedule *s)
{
    const int matrices = s->variant.is_dual ? 2 : 1;
    const int64_t positions = matrices * sm90_gemv_positions(p->n / matrices, p->b.sf_layout == NK_SF_BLOCKED);
    const int32_t tile = sm90_gemv_tile_rows(s->variant.kind, s->is_short),
                  granularity = epilogue_granularity(&s->variant, tile);
    const int64_t whole_rows = tile > granularity ? tile : granularity,
                  clusters = room->at_once[ctas_of_sm(s) - 1][cluster];
    if (clusters == 0) return false;
    int64_t at_once = clusters / (p->l > 0 ? p->l : 1);
    if (at_once < 1) at_once = 1;
    int64_t least = nk_ceil_div(positions, at_once * SM90_GEMV_MAX_ROWS);
    int64_t rows = nk_ceil_div(positions, at_once * ((least > 0 ? least : 1) + more));
    if (whole) rows = nk_ceil_div(rows, whole_rows) * whole_rows;
    return rows <= SM90_GEMV_MAX_ROWS && schedule_rows(p, room->gpu, cluster, positions, rows > 0 ? rows : 1, s);
}

/* Microseconds; sm90_gemv_costs.h says of what. */
typedef struct gemv_costs {
    double each, tall_step, short_step, step_of_sm, codes, f16, solo, cluster, cluster_cta, ragged, mb;
} gemv_costs;

static gemv_costs costs_of(const sm90_gemv_schedule *s)
{
    const sm90_gemv_kind kind = s->variant.kind;
    if (s->by_tensor_map) {
        return (gemv_costs){.tall_step = SM90_GEMV_MAP_STEP_US,
                            .solo = SM90_GEMV_MAP_SOLO_US,
                            .cluster = SM90_GEMV_MAP_CLUSTER_US,
                            .mb = SM90_GEMV_MAP_MB_US};
    }
    if (kind == SM90_GEMV_CODES) {
        return (gemv_costs){.tall_step = SM90_GEMV_CODES_TALL_STEP_US,
                            .short_step = SM90_GEMV_CODES_SHORT_STEP_US,
                            .solo = SM90_GEMV_CODES_SOLO_US,
                            .cluster = SM90_GEMV_CODES_CLUSTER_US,
                            .ragged = SM90_GEMV_CODES_RAGGED_US};
    }
    if (kind == SM90_GEMV_FP16 || kind == SM90_GEMV_BF16 || kind == SM90_GEMV_CODES_AS_FP16) {
        return (gemv_costs){.step_of_sm = SM90_GEMV_F16_STEP_OF_SM_US,
                            .each = s->variant.has_experts ? SM90_GEMV_EXPERT_US : 0,
                            .solo = SM90_GEMV_F16_SOLO_US,
                            .cluster = SM90_GEMV_F16_CLUSTER_US,
                            .cluster_cta = SM90_GEMV_F16_CLUSTER_CTA_US};
    }
    return (gemv_costs){.step_of_sm = SM90_GEMV_FEW_STEP_OF_SM_US,
                        .codes = SM90_GEMV_FEW_CODES_US,
                        .f16 = SM90_GEMV_FEW_F16_US,
                        .solo = SM90_GEMV_FEW_SOLO_US,
                        .cluster = SM90_GEMV_FEW_CLUSTER_US,
                        .cluster_cta = SM90_GEMV_FEW_CLUSTER_CTA_US};
}

static double schedule_us(const nk_gemv_problem *p, const sm90_gemv_clusters *room, const sm90_gemv_schedule *s)
{
    const gemv_costs cost = costs_of(s), *c = &cost;
    const int32_t per_sm = ctas_of_sm(s), cluster = s->scheduler.cluster, rows = s->scheduler.rows,
                  k_steps = s->scheduler.k_steps;
    const int32_t tile = sm90_gemv_tile_rows(s->variant.kind, s->is_short), tiles = (rows + tile - 1) / tile;
    const int64_t waves = nk_ceil_div(p->l * s->clusters, room->at_once[per_sm - 1][cluster]);
    const double of_sm = (double)per_sm * k_steps;
    const double memory = of_sm * rows * SM90_GEMV_STEP * 9 / 16 / SM90_GEMV_BYTES_PER_US;
    const double steps =
        s->scheduler.steps_per_consumer * (s->is_short ? c->short_step : c->tall_step) + of_sm * tiles * c->step_of_sm;
    const double mb = (double)p->l * (double)p->n * (double)p->k * 9 / 16 / 1e6;
    const double tokens = of_sm * (double)p->m * SM90_GEMV_TOKEN_STEP_BYTES / 1000;
    double us = c->each + (steps > memory ? steps : memory);
    us += tokens * (p->a.dtype == NK_E2M1X2 ? c->codes : c->f16);
    if (cluster > 1) us += c->cluster + cluster * c->cluster_cta;
    if (per_sm == 1) us += c->solo;
    if (rows % tile) us += c->ragged;
    return (double)waves * us + mb * c->mb;
}

static const struct {
    int32_t warps;
    bool is_short, by_tensor_map;
} tiles[SM90_GEMV_TILE_COUNT] = {
#define ROW(name, ...) [SM90_GEMV_##name] = {__VA_ARGS__},
    SM90_GEMV_TILES(ROW)
#undef ROW
};

const nk_family sm90_gemv_family = {.row = "sm90", .name = "gemv", .tiles = NK_TILE_NAMES(SM90_GEMV_TILES)};

const char *sm90_gemv_why_not(const nk_gemv_problem *p, sm90_gemv_kind kind, int tile)
{
    const bool codes = kind == SM90_GEMV_CODES, narrow = sm90_gemv_access_of(p) == SM90_GEMV_NARROW;
    const bool is_short = tiles[tile].is_short, by_tensor_map = tiles[tile].by_tensor_map;
    if (!codes && (is_short || by_tensor_map)) return "it is for one NVFP4 token and one matrix";
    if (codes && narrow && !is_short) return "K or an address is not aligned, which only short tiles support";
    if (by_tensor_map && !sm90_gemv_has_maps(p))
        return "no tensor map describes the weights: their K, rows, addresses or strides";
    return NULL;
}

/* Finds the fastest schedule in `more` waves than are needed, of the tiles whose bits are set in `usable`. Rows in
 * whole tiles are tried for one NVFP4 token, since only its tiles are large. By tensor map, and with two matrices,
 * tiles must be whole. Experts have no clusters, since a CTA whose row has no expert exits at once. */
static void find_in_waves(const nk_gemv_problem *p, const sm90_gemv_variant *variant, const sm90_gemv_clusters *room,
                          int more, uint32_t usable, sm90_gemv_schedule *best)
{
    const bool codes = variant->kind == SM90_GEMV_CODES;
    for (int cluster = 1; cluster <= (variant->has_experts ? 1 : SM90_GEMV_MAX_CLUSTER); cluster++) {
        for (int choice = 0; choice < (codes ? 2 : 1) * SM90_GEMV_TILE_COUNT; choice++) {
            const int tile = choice % SM90_GEMV_TILE_COUNT;
            const bool whole = variant->is_dual || choice >= SM90_GEMV_TILE_COUNT;
            sm90_gemv_schedule s = {.tile = tile,
                                    .warps = tiles[tile].warps,
                                    .is_short = tiles[tile].is_short,
                                    .by_tensor_map = tiles[tile].by_tensor_map,
                                    .variant = *variant};
            if (!(usable >> tile & 1) || (s.by_tensor_map && !whole)) continue;
            if (!schedule_of(p, room, cluster, more, whole, &s)) continue;
            s.us = schedule_us(p, room, &s);
            if (!best->warps || s.us < best->us) *best = s;
        }
    }
}

bool sm90_gemv_find_schedule(const nk_gemv_problem *p, const sm90_gemv_variant *variant, const sm90_gemv_clusters *room,
                             int forced, sm90_gemv_schedule *best)
{
    uint32_t usable = 0;
    for (int tile = 0; tile < SM90_GEMV_TILE_COUNT; tile++) {
        const bool asked = forced == NK_TILE_ANY || forced == tile;
        if (asked && !sm90_gemv_why_not(p, variant->kind, tile)) usable |= 1u << tile;
    }
    *best = (sm90_gemv_schedule){0};
    for (int more = 0; more <= MORE_WAVES && usable && !best->warps; more++)
        find_in_waves(p, variant, room, more, usable, best);
    return best->warps;
}
