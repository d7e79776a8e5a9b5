/* The sm100 GEMM family, of NVFP4 tokens: its tile configurations, what they serve and cost. Then the cells of the
 * sm100 row of the backend table. */
#include "gemm/gemm_gemv.h"
#include "sm100/gemv/sm100_gemv.h"
#include "sm100_gemm_family.h"

static const gemm_config configs[SM100_GEMM_TILE_COUNT] = {
#define CONFIG(name, ctas, mma_n, split, of_one, of_two, pairs)           \
    [SM100_GEMM_##name] = {.tile_m = mma_n,                               \
                           .tile_n = (ctas) * (pairs) * SM100_GEMM_CTA_M, \
                           .tile_k = SM100_GEMM_TILE_K,                   \
                           .cluster = (ctas) * (split) * (pairs),         \
                           .split_k = split,                              \
                           .ctas_per_mma = ctas,                          \
                           .multicast = pairs},
    SM100_GEMM_TILES(CONFIG)
#undef CONFIG
};

#define OF_GEMM(name, ...) [SM100_GEMM_##name] = &sm100_gemm_##name,
#define OF_DUAL(name, ...) [SM100_GEMM_##name] = &sm100_dual_gemm_##name,
#define OF_GROUPED(name, ...) [SM100_GEMM_##name] = &sm100_grouped_gemm_##name,
#define OF_GATED(name, ...) [SM100_GEMM_##name] = &sm100_grouped_dual_gemm_##name,
#define OF_LIST(name, ...) [SM100_GEMM_##name] = &sm100_list_gemm_##name,
#define OF_ACTIVATED(name, ...) [SM100_GEMM_##name] = &sm100_activated_grouped_gemm_##name,
static cuda_kernel *const kernels[GEMM_OPERATORS][SM100_GEMM_TILE_COUNT] = {
    [GEMM] = {SM100_GEMM_TILES(OF_GEMM)},
    [GEMM_DUAL] = {SM100_GEMM_DUAL_TILES(OF_DUAL)},
    [GEMM_GROUPED] = {SM100_GEMM_GROUPED_TILES(OF_GROUPED)},
    [GEMM_GROUPED_DUAL] = {SM100_GEMM_GROUPED_DUAL_TILES(OF_GATED)},
    [GEMM_LIST] = {SM100_GEMM_GROUPED_TILES(OF_LIST)},
};
static cuda_kernel *const of_activated[SM100_GEMM_TILE_COUNT] = {SM100_GEMM_ACTIVATED_TILES(OF_ACTIVATED)};

static cuda_kernel *sm100_gemm_kernel_of(const gemm_desc *d, int config)
{
    return (d->activation ? of_activated : kernels[d->op])[config];
}

static const char *sm100_gemm_why_not(const gemm_desc *d, const gemm_query *q)
{
    const nk_gemm_problem *p = d->gemm;
    const nk_grouped_gemm_problem *g = d->experts;
    const int64_t row_bytes = nk_sf_padded_cols(p->k / NK_SF_VEC) * NK_SF_ATOM_ROWS; /* of atoms */
    if (d->op != GEMM && p->b.dtype != NK_E2M1X2) return GEMM_NOT_NVFP4("weights");
    if (p->a.dtype != NK_E2M1X2) return GEMM_NOT_NVFP4("tokens");
    const char *why = sm100_why_not_sizes(d);
    if (why) return why;
    if (g && p->a.sf_layout == NK_SF_BLOCKED && !g->rows.data && g->a_sf_bytes < row_bytes)
        return "the tokens have no scale factors";
    if (!sm100_has_map(d, &p->a, q->batch_invariant)) return GEMM_NO_MAP("tokens");
    const bool has_up = !d->up || sm100_has_map(d, d->up, q->batch_invariant);
    return has_up && sm100_has_map(d, &p->b, q->batch_invariant) ? NULL : GEMM_NO_MAP("weights");
}

/* Of a CTA: the rate of MMAs, or that of the operands' rows out of shared memory. */
static double sm100_gemm_mma_cycles(const gemm_config *t)
{
    const double rows = SM100_GEMM_CTA_M + (double)t->tile_m / t->ctas_per_mma;
    return nk_larger(t->tile_m * SM100_GEMM_MMA_N_CYCLES, rows * SM100_GEMM_OPERAND_ROW_CYCLES);
}

/* Bytes of the MMA's N that multicast saves this CTA: pairs share its codes, and all CTAs its scale factors. None if
 * one wave is enough: then SMs are idle, and L2 gives the others more. */
static double sm100_gemm_multicast_bytes(const gemm_config *t, double k, double waves)
{
    if (t->multicast == 1 || waves <= 1) return 0;
    const double code_bytes = (double)t->tile_m / t->ctas_per_mma * k / 2, sf_bytes = t->tile_m * k / NK_SF_VEC;
    return code_bytes * (1 - 1.0 / t->multicast) + sf_bytes * (1 - 1.0 / t->cluster);
}

/* Of the CTA with most tiles: each tile takes its MMAs, its bytes or its stores, whichever is longest; the last tile's
 * stores come on top. */
static double sm100_gemm_tiles_us(const gemm_desc *d, const gemm_config *t, double waves)
{
    const double matrices = gemm_matrices(d), k = (double)d->gemm->k / t->split_k;
    const double mmas = matrices * k / SM100_GEMM_MMA_K * sm100_gemm_mma_cycles(t);
    const double code_rows = matrices * SM100_GEMM_CTA_M + (double)t->tile_m / t->ctas_per_mma,
                 sf_rows = matrices * SM100_GEMM_CTA_M + t->tile_m;
    const double arrive = code_rows * k / 2 + sf_rows * k / NK_SF_VEC,
                 bytes = arrive - sm100_gemm_multicast_bytes(t, k, waves);
    const double tile_cycles =
        nk_larger(mmas, nk_larger(bytes / SM100_GEMM_BYTES_PER_CYCLE, arrive / SM100_GEMM_ARRIVING_BYTES_PER_CYCLE));
    const double stores = SM100_GEMM_EPILOGUE_CYCLES + matrices * t->tile_m * SM100_GEMM_EPILOGUE_N_CYCLES;
    const double inbox = SM100_GEMM_INBOX_BYTES(t->tile_m, t->split_k, gemm_matrices(d));
    const double sums = t->split_k > 1 ? SM100_GEMM_SPLIT_K_CYCLES + inbox / SM100_GEMM_BYTES_PER_CYCLE : 0;
    const double fill = SM100_GEMM_FILL_CYCLES + (t->ctas_per_mma > 1 ? t->multicast * SM100_GEMM_PAIR_CYCLES : 0);
    return (fill + waves * nk_larger(tile_cycles, stores + sums) + stores + sums) / SM100_GEMM_CYCLES_PER_US;
}

static sm100_resources sm100_gemm_resources(const gemm_desc *d, const gemm_config *t)
{
    return (sm100_resources){
        .threads = SM100_GEMM_CTA_THREADS(t->multicast),
        .stages = SM100_GEMM_STAGES(t->ctas_per_mma, t->tile_m, t->split_k, gemm_matrices(d)),
        .smem_bytes = SM100_GEMM_SMEM(t->ctas_per_mma, t->tile_m, t->split_k, gemm_matrices(d)),
    };
}

static const char *sm100_gemm_why(const gemm_desc *d, bool tokens_are_mma_m)
{
    (void)d;
    return tokens_are_mma_m ? "tokens are the MMA's M, weight rows its N" : "weight rows are the MMA's M, tokens its N";
}

static const sm100_mainloop mainloop = {.tokens_may_be_mma_m = true,
                                        .copies_sf = true,
                                        .why = sm100_gemm_why,
                                        .resources = sm100_gemm_resources,
                                        .us = sm100_gemm_tiles_us};

/* Batch-invariant calls use one tile: then the same instructions make a row, whatever else the call holds. */
GEMM_FAMILY(sm100, gemm, NULL, SM100_GEMM_TILES, .schedules = 2, .invariant = SM100_GEMM_n64,
            .kernel = sm100_gemm_kernel_of, .why_not = sm100_gemm_why_not, SM100_SHARED_MEMBERS(&mainloop));

/* ---------------------------------------------------------------------------------------------------------------- */
/* The row                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

static const gemm_family *sm100_family_by_tokens(const gemm_desc *d)
{
    return d->gemm->a.dtype != NK_E2M1X2 ? &sm100_kind_f16 : &sm100_gemm;
}

static const char *sm100_gemm_row_why_not(const gemm_desc *d, const nk_settings *settings)
{
    (void)settings;
    if (d->list && d->activation) return GEMM_NO_ACTIVATED_LISTS;
    return gemm_encodes(d) ? GEMM_NO_CODES : NULL;
}

static nk_status sm100_gemm_plan_gemv(const gemm_desc *d, const nk_settings *settings, nk_plan *plan, void *choice,
                                      double *us)
{
    return gemm_plan_few_tokens(&sm100_gemv_row, sm100_family_by_tokens(d), d, settings, plan, choice, us);
}

static const gemm_row sm100_gemm_row = {.family = sm100_family_by_tokens,
                                        .why_not = sm100_gemm_row_why_not,
                                        .plan_gemv = sm100_gemm_plan_gemv,
                                        .run_gemv = gemm_run_few_tokens};
GEMM_CELLS(sm100)
