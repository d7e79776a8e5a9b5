/* The sm100 kind_f16 family, of 16-bit tokens: its tile configurations, what they serve and cost. Weights are decoded
 * to tensor memory, or are 16-bit as they are. */
#include "sm100/gemm/sm100_gemm_family.h"
#include "sm100_kind_f16_config.h"
#include "sm100_kind_f16_costs.h"

static const gemm_config configs[SM100_KIND_F16_TILE_COUNT] = {
#define CONFIG(name, ctas, mma_n, split, ...)                       \
    [SM100_KIND_F16_##name] = {.tile_m = mma_n,                     \
                               .tile_n = (ctas) * SM100_GEMM_CTA_M, \
                               .tile_k = SM100_KIND_F16_TILE_K,     \
                               .cluster = (ctas) * (split),         \
                               .split_k = split,                    \
                               .ctas_per_mma = ctas,                \
                               .multicast = 1},
    SM100_KIND_F16_TILES(CONFIG)
#undef CONFIG
};

#define OF_GEMM(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_gemm_##name,
#define OF_DUAL(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_dual_gemm_##name,
#define OF_GROUPED(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_grouped_gemm_##name,
#define OF_GATED(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_grouped_dual_gemm_##name,
#define OF_LIST(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_list_gemm_##name,
#define OF_ACTIVATED(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_activated_grouped_gemm_##name,
#define OF_16_BITS(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_grouped_gemm_16bit_##name,
static cuda_kernel *const kernels[GEMM_OPERATORS][SM100_KIND_F16_TILE_COUNT] = {
    [GEMM] = {SM100_KIND_F16_TILES(OF_GEMM)},
    [GEMM_DUAL] = {SM100_KIND_F16_DUAL_TILES(OF_DUAL)},
    [GEMM_GROUPED] = {SM100_KIND_F16_GROUPED_TILES(OF_GROUPED)},
    [GEMM_GROUPED_DUAL] = {SM100_KIND_F16_GROUPED_TILES(OF_GATED)},
    [GEMM_LIST] = {SM100_KIND_F16_LIST_TILES(OF_LIST)},
};
static cuda_kernel *const of_activated[SM100_KIND_F16_TILE_COUNT] = {SM100_KIND_F16_GROUPED_TILES(OF_ACTIVATED)};
static cuda_kernel *const of_16_bits[SM100_KIND_F16_TILE_COUNT] = {SM100_KIND_F16_GROUPED_TILES(OF_16_BITS)};

/* Weights, unless they are 16-bit. */
static bool sm100_f16_decodes(const gemm_desc *d) { return d->gemm->b.dtype == NK_E2M1X2; }

static cuda_kernel *sm100_f16_kernel_of(const gemm_desc *d, int config)
{
    if (sm100_f16_decodes(d)) return (d->activation ? of_activated : kernels[d->op])[config];
    return d->op == GEMM_GROUPED && !d->activation ? of_16_bits[config] : NULL;
}

/* Of a list: a kernel asks the first group whether tokens are bf16. */
static bool sm100_f16_in_one_launch(const nk_gemm_problem *member, const nk_gemm_problem *first)
{
    return member->a.dtype == first->a.dtype;
}

static const char *sm100_f16_why_not(const gemm_desc *d, const gemm_query *q)
{
    const nk_gemm_problem *p = d->gemm;
    if (d->op == GEMM_LIST && !sm100_f16_decodes(d)) return GEMM_NOT_NVFP4("weights");
    const char *why = sm100_why_not_sizes(d);
    if (why) return why;
    if (!sm100_has_map(d, &p->b, q->batch_invariant)) return GEMM_NO_MAP("weights");
    if (!sm100_has_map(d, &p->a, q->batch_invariant)) return GEMM_NO_MAP("tokens");
    return d->up && !sm100_has_map(d, d->up, q->batch_invariant) ? GEMM_NO_MAP("weights") : NULL;
}

/* MMAs, decoding, the bytes of stages or stores, whichever takes longest, of the CTA with most tiles; the last tile's
 * stores. */
static double sm100_f16_tiles_us(const gemm_desc *d, const gemm_config *t, double waves)
{
    const nk_gemm_problem *p = d->gemm;
    const int matrices = gemm_matrices(d);
    const double k = (double)p->k / t->split_k, blocks = k / SM100_KIND_F16_SWIZZLE_K;
    const double weight_bytes = sm100_f16_decodes(d) ? 0.5 + 1.0 / NK_SF_VEC : 2;
    const double tokens = fmin((double)gemm_expected_m(d), t->tile_m); /* that are there */
    const double bytes = (matrices * SM100_GEMM_CTA_M * weight_bytes + 2 * tokens / t->ctas_per_mma) * k;
    const double rows = (double)t->tile_m / t->ctas_per_mma + (sm100_f16_decodes(d) ? 0 : SM100_GEMM_CTA_M),
                 of_rows = rows * SM100_KIND_F16_OPERAND_ROW_CYCLES;
    const double mmas = matrices * blocks * nk_larger(t->tile_m * SM100_KIND_F16_MMA_N_CYCLES, of_rows);
    const double decoding = sm100_f16_decodes(d) ? matrices * blocks * SM100_KIND_F16_DECODE_CYCLES : 0;
    const double inbox = SM100_GEMM_INBOX_BYTES(t->tile_m, t->split_k, matrices) / SM100_GEMM_BYTES_PER_CYCLE;
    const double stores = SM100_GEMM_EPILOGUE_CYCLES + matrices * t->tile_m * SM100_GEMM_EPILOGUE_N_CYCLES +
                          (t->split_k > 1 ? SM100_GEMM_SPLIT_K_CYCLES + inbox : 0);
    const double loop = nk_larger(nk_larger(mmas, decoding), bytes / SM100_GEMM_BYTES_PER_CYCLE);
    const double fill = SM100_GEMM_FILL_CYCLES + (t->ctas_per_mma > 1 ? SM100_GEMM_PAIR_CYCLES : 0);
    return (fill + waves * nk_larger(loop, stores) + stores) / SM100_GEMM_CYCLES_PER_US;
}

static sm100_resources sm100_f16_resources(const gemm_desc *d, const gemm_config *t)
{
    const int matrices = gemm_matrices(d);
    return (sm100_resources){
        .threads = SM100_KIND_F16_THREADS(sm100_f16_decodes(d)),
        .stages = SM100_KIND_F16_STAGES(sm100_f16_decodes(d), t->ctas_per_mma, t->tile_m, t->split_k, matrices),
        .smem_bytes = SM100_KIND_F16_SMEM(sm100_f16_decodes(d), t->ctas_per_mma, t->tile_m, t->split_k, matrices),
    };
}

static const char *sm100_f16_why(const gemm_desc *d, bool tokens_are_mma_m)
{
    (void)tokens_are_mma_m;
    return sm100_f16_decodes(d) ? "weights are decoded to tensor memory" : "16-bit weights are multiplied as they are";
}

static const sm100_mainloop mainloop = {
    .why = sm100_f16_why, .resources = sm100_f16_resources, .us = sm100_f16_tiles_us};

GEMM_FAMILY(sm100, kind_f16, "halves", SM100_KIND_F16_TILES, .schedules = 1, .invariant = SM100_KIND_F16_n64,
            .kernel = sm100_f16_kernel_of, .why_not = sm100_f16_why_not, .in_one_launch = sm100_f16_in_one_launch,
            SM100_SHARED_MEMBERS(&mainloop));
