/* Chooses a gemv's schedule by cost. */
#include "cuda_gemv.h"

#include "cuda_encode.h"

gemv_kind cuda_gemv_kind_of(const nk_gemv_problem *p)
{
    if (p->a.dtype == NK_E2M1X2) return p->m == 1 ? GEMV_CODES : GEMV_FEW_CODES;
    return p->a.dtype == NK_F16 ? GEMV_FP16 : GEMV_BF16;
}

gemv_access cuda_gemv_access_of(const nk_gemv_problem *p)
{
    const nk_operand *w = &p->b;
    const bool is_aligned = cuda_are_data_aligned(w, p->n, p->l, 32) && cuda_are_sf_aligned(w, p->n, p->l, 4);
    if (p->k % GEMV_CHUNK || !is_aligned) return GEMV_NARROW;
    return w->sf_layout == NK_SF_BLOCKED ? GEMV_BLOCKED : GEMV_LINEAR;
}

static const int32_t warps_of[] = {
#define WARPS(name, warps) warps,
    GEMV_TILES(WARPS)
#undef WARPS
};
#define TILE_COUNT ((int)(sizeof warps_of / sizeof *warps_of))

int32_t cuda_gemv_warps_of(int tile) { return warps_of[tile]; }

static int32_t ctas_per_sm(const gemv_schedule *d) { return GEMV_WARPS / d->warps; }

/* How many warps have steps of one tile, at most. */
static int32_t splits_of_tile(int32_t k_steps, int32_t steps_per_warp, int32_t warps)
{
    int32_t most = (k_steps + steps_per_warp - 2) / steps_per_warp + 1; /* the tile begins anywhere in a warp's steps */
    if (steps_per_warp % k_steps == 0) most = 1;
    if (k_steps % steps_per_warp == 0) most = k_steps / steps_per_warp;
    return most < warps ? most : warps;
}

/* Gives `rows` positions to each cluster. False if shared memory has no room, or a CTA would have no K. */
static bool fits(const nk_gemv_problem *p, const cuda_gpu *gpu, int64_t positions, int64_t rows, int32_t cluster,
                 gemv_schedule *d)
{
    const int64_t all = gemv_k_steps(p->k), k_steps = nk_ceil_div(all, cluster);
    const int32_t room = cuda_smem_per_cta(gpu, ctas_per_sm(d));
    if ((cluster - 1) * k_steps >= all && cluster > 1) return false;     /* it would never send its sums */
    if (k_steps * GEMV_STEP * 2 > room || rows * 4 > room) return false; /* from here on 32 bits are enough */
    const int64_t tiles = nk_ceil_div(rows, GEMV_TILE_ROWS), steps = nk_ceil_div(tiles * k_steps, d->warps);
    d->scheduler = (gemv_scheduler){
        .positions = positions,
        .clusters = (int32_t)nk_ceil_div(positions, rows),
        .cluster = cluster,
        .rows = (int32_t)rows,
        .epilogue_rows = (int32_t)nk_ceil_div(rows, cluster),
        .k_steps = (int32_t)k_steps,
        .all_k_steps = (int32_t)all,
        .steps_per_warp = steps > 0 ? (int32_t)steps : 1,
        .split_k = 1,
        .tokens = (int32_t)p->m,
    };
    gemv_scheduler *w = &d->scheduler;
    for (int64_t left = all; left > 0; left -= k_steps) { /* the last CTA may have fewer steps, and more splits */
        const int32_t of_cta = (int32_t)(left < k_steps ? left : k_steps),
                      splits = splits_of_tile(of_cta, w->steps_per_warp, d->warps);
        if (splits > w->split_k) w->split_k = splits;
    }
    const int64_t bytes = gemv_smem_bytes(w);
    d->smem_bytes = (int32_t)bytes;
    return bytes <= room && p->l * (int64_t)w->clusters <= INT32_MAX;
}

static double gemv_us(const nk_gemv_problem *p, const gemv_costs *c, const gemv_schedule *d, int32_t at_once)
{
    const gemv_scheduler *w = &d->scheduler;
    const gemv_kind kind = cuda_gemv_kind_of(p);
    const double of_sm = ctas_per_sm(d) * (double)w->k_steps;
    const double step_of_sm = kind == GEMV_CODES  ? c->codes_sm_step_us
                              : kind == GEMV_BF16 ? c->bf16_sm_step_us
                                                  : c->fp16_sm_step_us;
    const double memory = of_sm * w->rows * GEMV_STEP * 9 / 16 / c->bytes_per_us;
    const double tiles = (double)nk_ceil_div(w->rows, GEMV_TILE_ROWS);
    double us = nk_larger(memory, nk_larger(w->steps_per_warp * c->step_us, of_sm * tiles * step_of_sm));
    us += of_sm * (double)p->m * GEMV_STEP * 2 / 1000 * c->token_kb_us;
    if (w->cluster > 1) us += c->cluster_us + w->cluster * c->cluster_cta_us;
    if (ctas_per_sm(d) == 1) us += c->solo_us;
    return c->launch_us + (double)nk_ceil_div(p->l * w->clusters, at_once) * us;
}

/* One tile of rows for each CTA, which has all of K: a row's bits do not depend on its position. */
static bool batch_invariant_schedule(const nk_gemv_problem *p, const gemv_clusters *resident, int64_t positions,
                                     gemv_schedule *d)
{
    return fits(p, resident->gpu, positions, GEMV_TILE_ROWS, 1, d);
}

/* The fewest waves for which shared memory has room: fewer rows need less of it. Rows come by 8, which read whole
 * sectors of blocked scale factors. */
static bool even_schedule(const nk_gemv_problem *p, const gemv_clusters *resident, int64_t positions, int32_t cluster,
                          int more, gemv_schedule *d)
{
    int64_t at_once = resident->at_once[d->tile][cluster] / (p->l > 0 ? p->l : 1);
    if (at_once < 1) at_once = 1;
    const int64_t rows = nk_ceil_div(nk_ceil_div(positions, at_once << more), GEMV_M8) * GEMV_M8;
    return fits(p, resident->gpu, positions, rows > 0 ? rows : GEMV_M8, cluster, d);
}

#define MORE_WAVES 24 /* at most, each doubling their number */

gemv_schedule cuda_gemv_find_schedule(const nk_gemv_problem *p, const cuda_gemv_row *row, const gemv_clusters *resident,
                                      int forced, bool batch_invariant)
{
    const bool blocked = cuda_gemv_access_of(p) == GEMV_BLOCKED;
    const int64_t positions = gemv_positions(p->n, blocked);
    gemv_schedule best = {0};
    for (int tile = 0; tile < TILE_COUNT; tile++) {
        if (forced != NK_TILE_ANY && forced != tile) continue;
        for (int32_t cluster = 1; cluster <= (batch_invariant ? 1 : row->max_cluster); cluster++) {
            const int32_t at_once = resident->at_once[tile][cluster];
            gemv_schedule d = {.tile = tile, .warps = warps_of[tile]};
            bool found = batch_invariant && batch_invariant_schedule(p, resident, positions, &d);
            for (int more = 0; at_once && !batch_invariant && !found && more < MORE_WAVES; more++)
                found = even_schedule(p, resident, positions, cluster, more, &d);
            if (!found) continue;
            d.us = gemv_us(p, row->costs, &d, at_once);
            if (!best.warps || d.us < best.us) best = d;
        }
        if (batch_invariant && best.warps) break; /* the tile must not depend on the rows, either */
    }
    return best;
}
