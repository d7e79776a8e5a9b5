/* The sm90 GEMM family: its tile configurations, what they serve and cost, and its launches: a prologue kernel brings
 * tokens to 16 bits, for wgmma, and the gemm follows. */
#include "sm90_gemm_family.h"

static const gemm_config configs[SM90_GEMM_TILE_COUNT] = {
#define FIELDS(m, n, consumer_groups, ctas, pipeline_stages, steps, early)                                    \
    .tile_m = m, .tile_n = n, .tile_k = (steps) * SM90_GEMM_STEP, .stages = pipeline_stages, .cluster = ctas, \
    .split_k = (consumer_groups) * (ctas), .warpgroups = (n) / 64 * (consumer_groups)
#define CONFIG(name, ...) [SM90_GEMM_##name] = {FIELDS(__VA_ARGS__)},
#define NATURAL_K(name, ...) [SM90_GEMM_##name] = {FIELDS(__VA_ARGS__), .natural_k = true},
    SM90_GEMM_ONE_GEMM_TILES(CONFIG) SM90_GEMM_LARGE_EXPERT_TILES(CONFIG) SM90_GEMM_NATURAL_K_TILES(NATURAL_K)
#undef NATURAL_K
#undef CONFIG
#undef FIELDS
};

/* For fp16 tokens, which NVFP4 ones become, and for bf16. */
typedef cuda_kernel *kernels_of_tile[2];
#define KERNELS(op, name) [SM90_GEMM_##name] = {&sm90_##op##_##name##_fp16, &sm90_##op##_##name##_bf16},
#define OF_GEMM(name, ...) KERNELS(gemm, name)
#define OF_DUAL(name, ...) KERNELS(dual_gemm, name)
#define OF_GROUPED(name, ...) KERNELS(grouped_gemm, name)
#define OF_ACTIVATED(name, ...) KERNELS(activated_grouped_gemm, name)
#define OF_GATED(name, ...) KERNELS(grouped_dual_gemm, name)
#define OF_ENCODED(name, ...) KERNELS(encoded_grouped_dual_gemm, name)
static const kernels_of_tile of_gemm[SM90_GEMM_TILE_COUNT] = {SM90_GEMM_ONE_GEMM_TILES(OF_GEMM)
                                                                  SM90_GEMM_NATURAL_K_TILES(OF_GEMM)},
                             of_dual[SM90_GEMM_TILE_COUNT] = {SM90_GEMM_ONE_GEMM_TILES(OF_DUAL)},
                             of_grouped[SM90_GEMM_TILE_COUNT] = {SM90_GEMM_EXPERT_TILES(OF_GROUPED)},
                             of_activated[SM90_GEMM_TILE_COUNT] = {SM90_GEMM_COMMON_TILES(OF_ACTIVATED)},
                             of_gated[SM90_GEMM_TILE_COUNT] = {SM90_GEMM_EXPERT_TILES(OF_GATED)},
                             of_encoded[SM90_GEMM_TILE_COUNT] = {SM90_GEMM_COMMON_TILES(OF_ENCODED)};

static cuda_kernel *sm90_gemm_kernel_of(const gemm_desc *d, int config)
{
    static const kernels_of_tile *const kernels[GEMM_LIST] = {
        [GEMM] = of_gemm, [GEMM_DUAL] = of_dual, [GEMM_GROUPED] = of_grouped, [GEMM_GROUPED_DUAL] = of_gated};
    static const kernels_of_tile *const activated[GEMM_LIST] = {[GEMM_GROUPED] = of_activated,
                                                                [GEMM_GROUPED_DUAL] = of_encoded};
    if (d->op == GEMM_LIST) return sm90_list_kernel_of(d, config);
    return (d->activation ? activated : kernels)[d->op][config][d->gemm->a.dtype == NK_BF16];
}

/* Spare rows behind the tokens keep tensor-map boxes in bounds: boxes that are partly out of bounds complete late. A
 * batch but the last has the next one's rows for them. */
static int64_t sm90_gemm_spare_rows(const gemm_desc *d, const gemm_config *t)
{
    const int64_t m = d->gemm->m;
    return d->experts ? t->tile_m : nk_ceil_div(m, t->tile_m) * t->tile_m - m;
}

static int64_t sm90_gemm_workspace_rows(const gemm_desc *d, const gemm_config *t)
{
    return d->gemm->l * d->gemm->m + sm90_gemm_spare_rows(d, t);
}

/* The most token rows of one launch: with the spare rows of any tile they fit into SM90_GEMM_MOST_WORKSPACE. */
static int64_t sm90_gemm_rows_at_once(const gemm_desc *d)
{
    return SM90_GEMM_MOST_WORKSPACE / sm90_gemm_row_bytes(d->gemm->k) - SM90_GEMM_MAX_TILE_M;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Which tiles can serve a call                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

static bool sm90_gemm_sf_are_aligned(const gemm_desc *d, const nk_operand *b, int64_t bytes)
{
    return cuda_are_sf_aligned(b, d->gemm->n, gemm_weight_batches(d), bytes);
}

static const char *sm90_gemm_why_not_weights(const gemm_desc *d, const nk_operand *b)
{
    if (!cuda_has_map(b, d->gemm->n, gemm_weight_batches(d), false)) return GEMM_NO_MAP("weights");
    return sm90_gemm_sf_are_aligned(d, b, b->sf_layout == NK_SF_LINEAR ? 4 : 16)
               ? NULL
               : "the weights' scale factors are not aligned";
}

const char *sm90_gemm_why_not(const gemm_desc *d, const gemm_query *q)
{
    const nk_gemm_problem *p = d->gemm;
    const nk_operand *a = &p->a;
    if (q->forced != NK_TILE_ANY) { /* what is wrong with the tile that the caller chose comes first */
        const char *why = d->op == GEMM_GROUPED_DUAL && !sm90_gemm_kernel_of(d, q->forced)
                              ? GEMM_NO_KERNEL
                              : sm90_gemm_why_not_config(d, q, &(gemm_candidate){.config = q->forced});
        if (why) return why;
    }
    const char *why = gemm_why_not_sizes(d);
    if (why) return why;
    if (sm90_gemm_rows_at_once(d) < GEMM_SLICE_ROWS) return "K is more than 2^18";
    why = sm90_gemm_why_not_weights(d, &p->b);
    if (!why && d->up) why = sm90_gemm_why_not_weights(d, d->up);
    if (why) return why;
    if (d->up && p->l > 1 && (p->b.batch_stride == 0) != (d->up->batch_stride == 0))
        return "one of b1 and b2 is the same for all batches";
    const int64_t bytes = a->dtype == NK_E2M1X2 ? 4 : 16;
    return cuda_are_data_aligned(a, gemm_tokens(d), p->l, bytes) ? NULL : "the tokens are not aligned";
}

static int64_t sm90_gemm_smem_bytes(const gemm_desc *d, int32_t config)
{
    return sm90_gemm_tile_smem(&configs[config], gemm_matrices(d)) +
           (d->experts ? SM90_GEMM_TILE_LIST_BYTES + SM90_GEMM_EXPERT_BYTES(gemm_experts(d)) : 0);
}

/* A box of tokens would have the next row's beyond K, whose NaN times 0 is NaN. */
static const char *sm90_gemm_why_not_natural_k(const nk_gemm_problem *p, const gemm_query *q)
{
    if (q->batch_invariant) return "it adds in another order of K, so it cannot keep NVFP4KERN_BATCH_INVARIANT=1";
    if (p->a.dtype == NK_E2M1X2) return "its tokens have 16 bits";
    if (p->k % SM90_GEMM_SWIZZLE_K) return "K is no multiple of 64, which boxes of its tokens have";
    return gemm_tokens_have_boxes(p) ? NULL : GEMM_NO_MAP("tokens");
}

const char *sm90_gemm_why_not_config(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    const gemm_config *t = &configs[c->config];
    const char *why = t->natural_k ? sm90_gemm_why_not_natural_k(d->gemm, q) : NULL;
    if (why) return why;
    if (d->op == GEMM_LIST ? !sm90_list_has_schedule(c) : c->schedule > 0) return gemm_no_schedule;
    if (d->op == GEMM_LIST) return NULL; /* each group has been asked */
    if (sm90_gemm_smem_bytes(d, c->config) > q->gpu->smem_per_cta) return GEMM_NO_SMEM;
    if (q->batch_invariant && t->split_k > 1) return "it splits K, so it cannot keep NVFP4KERN_BATCH_INVARIANT=1";
    if (d->experts && t->split_k > 1) return "it splits K, which no tile of experts does";
    const double n_tiles = (double)gemm_n_tiles(d, t, d->gemm->n);
    const double tiles = (double)d->gemm->l * n_tiles * (double)gemm_m_tiles(d, t->tile_m);
    return tiles < GEMM_LARGEST ? NULL : GEMM_TOO_LARGE;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* What a call takes: the costs are those of sm90_gemm_costs.h                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Tensor cores and instructions work side by side, but beside busy tensor cores instructions are issued slowly. */
double sm90_gemm_step_us(const gemm_config *t, double tile_m, bool lanes_copy)
{
    const double rows_of_128 = t->tile_n / 128.0;
    const double tensor = tile_m * SM90_GEMM_TENSOR_TOKEN_US;
    const double issue = SM90_GEMM_ISSUE_US + tile_m * SM90_GEMM_ISSUE_TOKEN_US +
                         SM90_GEMM_STAGE_US / sm90_gemm_steps(t) + (lanes_copy ? SM90_GEMM_LANES_US : 0);
    return rows_of_128 * nk_larger(tensor, issue);
}

/* Tiles along M, and the tokens that one multiplies. */
typedef struct m_tiles {
    double count, tile_m;
} m_tiles;

/* What to expect if rows fall to experts at random: each one's are divided evenly among as few tiles of at most
 * tile_m rows as it needs, whose rows are rounded up to `step`. With INT32_MAX: the experts that have rows. An expert's
 * rows are about Poisson. A mean above MANY is taken for all of them, and half a tile more. */
static m_tiles sm90_gemm_expert_tiles(const gemm_desc *d, int32_t tile_m, int32_t step)
{
    enum { MANY = 512, WIDTH = 200 }; /* nine standard deviations of MANY */
    const double experts = (double)gemm_experts(d), mean = (double)gemm_expected_m(d) / experts;
    if (mean > MANY) {
        const double count = nk_larger(1, mean / tile_m + 0.5);
        return (m_tiles){experts * count, fmin(tile_m, mean / count + 0.5 * step)};
    }
    const int first = mean > WIDTH ? (int)mean - WIDTH : 0;
    double weight = 1, all = 0, tiles = 0, tokens = 0; /* weights are relative, to the first one */
    for (int rows = first; rows < first + 2 * WIDTH; rows++) {
        if (rows > mean && weight < 1e-9 * all) break;
        const int its = rows / tile_m + (rows % tile_m != 0);
        all += weight;
        tiles += weight * its;
        if (its) tokens += weight * its * (double)(nk_ceil_div(nk_ceil_div(rows, its), step) * step);
        weight *= mean / (rows + 1);
    }
    return (m_tiles){experts * tiles / all, tiles > 0 ? tokens / tiles : 0};
}

/* Tiles of experts are not equally high, so the CTA that takes longest has more tokens than the mean says. With this
 * the choice is within 4 % of the fastest tile that was timed for experts of Qwen3-30B, gpt-oss-120b and DeepSeek-V3 on
 * an H200; but for 8 experts of 7168 x 2048 with 256 rows each another takes 5 % less. */
#define UNEVEN_TILES 1.1

static m_tiles sm90_gemm_expected_tiles(const gemm_desc *d, const gemm_config *t)
{
    const nk_gemm_problem *p = d->gemm;
    const double n_tiles = (double)gemm_n_tiles(d, t, p->n);
    if (!d->experts) return (m_tiles){n_tiles * (double)(p->l * nk_ceil_div(p->m, t->tile_m)), t->tile_m};
    m_tiles tiles = sm90_gemm_expert_tiles(d, t->tile_m, SM90_GEMM_TILE_M_STEP(t->tile_m));
    tiles.count *= n_tiles;
    tiles.tile_m *= UNEVEN_TILES;
    return tiles;
}

double sm90_gemm_us(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    if (d->op == GEMM_LIST) return sm90_list_us(d, q, c);
    const nk_gemm_problem *p = d->gemm;
    const gemm_config *t = &configs[c->config];
    const int64_t all_steps = nk_ceil_div(p->k, SM90_GEMM_STEP), steps_of_stage = sm90_gemm_steps(t);
    const m_tiles expected = sm90_gemm_expected_tiles(d, t);
    const double tiles = expected.count;
    const int64_t clusters = q->gpu->sms / t->cluster, at_once = clusters > 0 ? clusters : 1;
    const int64_t whole = (int64_t)(tiles / (double)at_once), waves = whole + ((double)(whole * at_once) < tiles);
    const int64_t steps = nk_ceil_div(nk_ceil_div(all_steps, steps_of_stage), t->cluster) * steps_of_stage;
    const double ctas = (tiles < (double)at_once ? tiles : (double)at_once) * t->cluster;
    const double padded_k = (double)(all_steps * SM90_GEMM_STEP);
    const double m = (double)gemm_expected_m(d);
    const double token_bytes = t->natural_k ? 0 : (double)p->l * m * padded_k * 2; /* of the prologue */
    const double matrices = d->experts ? sm90_gemm_expert_tiles(d, INT32_MAX, 1).count : (double)p->l; /* with rows */
    const double weight_bytes = matrices * (double)p->n * padded_k * (9.0 / 16) * gemm_matrices(d);
    const double busy = 1 + SM90_GEMM_BUSY * ctas / q->gpu->sms; /* CTAs share memory, L2 and power */
    const double natural_k = p->a.dtype == NK_BF16 ? SM90_GEMM_NATURAL_K_BF16_US : SM90_GEMM_NATURAL_K_FP16_US;
    const double step =
        sm90_gemm_step_us(t, expected.tile_m, sm90_gemm_lanes_copy(d, t)) + (t->natural_k ? natural_k : 0);
    const double loop = busy * (double)(waves * steps) * step;
    const double tile =
        SM90_GEMM_TILE_US + expected.tile_m * SM90_GEMM_TILE_TOKEN_US + (t->split_k > 1 ? SM90_GEMM_SPLIT_K_US : 0);
    const double launch = t->natural_k ? SM90_GEMM_NATURAL_K_LAUNCH_US : SM90_GEMM_LAUNCH_US;
    return launch + token_bytes / SM90_GEMM_TOKEN_BYTES_PER_US + busy * (double)waves * tile +
           nk_larger(loop, weight_bytes / SM90_GEMM_BYTES_PER_US);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Launch                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

static int32_t sm90_gemm_sf_alignment(const gemm_desc *d)
{
    int32_t bytes = 16;
    while (bytes > 4 &&
           !(sm90_gemm_sf_are_aligned(d, &d->gemm->b, bytes) && (!d->up || sm90_gemm_sf_are_aligned(d, d->up, bytes))))
        bytes /= 2;
    return bytes;
}

/* Whether tensor maps bring experts' linear scale factors. */
static bool sm90_gemm_has_sf_boxes(const gemm_desc *d, const gemm_config *t)
{
    const nk_operand *b = &d->gemm->b; /* the ups have its strides */
    return d->experts && SM90_GEMM_HAS_SF_BOXES(t->tile_n) && b->sf_layout == NK_SF_LINEAR &&
           sm90_gemm_sf_alignment(d) == SM90_GEMM_SF_BOX_BYTES && cuda_is_stride(b->sf_row_stride, d->gemm->n) &&
           (gemm_has_one_matrix(d) ? b->sf_batch_stride == 0 : cuda_is_stride(b->sf_batch_stride, gemm_experts(d)));
}

sm90_gemm_params sm90_gemm_params_of(const gemm_desc *d, const gemm_config *t)
{
    const nk_gemm_problem *p = d->gemm;
    const int64_t n_tiles = gemm_n_tiles(d, t, p->n), m_tiles = gemm_m_tiles(d, t->tile_m);
    const int64_t steps = nk_ceil_div(p->k, SM90_GEMM_STEP);
    return (sm90_gemm_params){
        .n_tiles = (int32_t)n_tiles,
        .m_tiles = (int32_t)m_tiles,
        .tiles = (int32_t)(p->l * n_tiles * m_tiles),
        .k_steps = (int32_t)steps,
        .k_tiles_per_cta = (int32_t)nk_ceil_div(nk_ceil_div(steps, sm90_gemm_steps(t)), t->cluster),
        .one_matrix = gemm_has_one_matrix(d),
        .mma_scale = p->a.dtype == NK_E2M1X2 ? 0x1p28f : 0x1p14f,
        .sf_alignment = sm90_gemm_sf_alignment(d),
        .has_sf_boxes = sm90_gemm_has_sf_boxes(d, t),
        .activation = d->activation ? (uint8_t)d->activation->kind : 0,
    };
}

/* Rows of a CTA of the prologue kernel: many where one each would be more threads, one for each 16 bytes, than the GPU
 * runs at once; twice as many without experts, whose rows await offsets and indices together. Both were measured. */
static int32_t sm90_gemm_prologue_rows(const gemm_desc *d, int64_t rows, int32_t sms)
{
    const int64_t threads = rows * sm90_gemm_row_bytes(d->gemm->k) / 16;
    return threads > (int64_t)sms * (d->experts ? 2048 : 4096) ? SM90_PREPARE_A_ROWS : 1;
}

/* Persistent CTAs where K is not split; else a CTA, or a cluster, for each tile. */
static void sm90_gemm_derive(const gemm_desc *d, const gemm_query *q, gemm_launch *c)
{
    if (d->op == GEMM_LIST) {
        sm90_list_derive(d, q, c);
        return;
    }
    const gemm_config *t = &configs[c->config];
    const int64_t n_tiles = gemm_n_tiles(d, t, d->gemm->n), tiles = d->gemm->l * n_tiles * gemm_m_tiles(d, t->tile_m);
    const bool is_persistent = t->split_k == 1;
    nk_plan *plan = &c->plan;
    plan->grid = is_persistent && tiles > q->gpu->sms ? q->gpu->sms : tiles * t->cluster;
    plan->threads = sm90_gemm_threads(t);
    plan->tile_n = gemm_features(d, t);
    c->smem_bytes = (int32_t)sm90_gemm_smem_bytes(d, c->config);
    if (t->natural_k) {
        plan->why = q->forced != NK_TILE_ANY ? "tokens as they lie, without a prologue kernel"
                                             : "the fastest by cost: persistent CTAs; tokens as they lie";
        return;
    }
    const int64_t rows = sm90_gemm_workspace_rows(d, t);
    plan->workspace_bytes = rows * sm90_gemm_row_bytes(d->gemm->k);
    c->prologue_rows = sm90_gemm_prologue_rows(d, rows, q->gpu->sms);
    plan->why = q->forced != NK_TILE_ANY ? "a prologue kernel brings tokens to 16 bits, for wgmma"
                : is_persistent
                    ? "the fastest by cost: persistent CTAs; a prologue kernel brings tokens to 16 bits"
                    : "the fastest by cost: K of a tile is split; a prologue kernel brings tokens to 16 bits";
}

cuda_boxes sm90_gemm_weight_boxes(const gemm_desc *d, const gemm_config *t, const char *name, const nk_operand *b)
{
    return cuda_k_major_boxes(b, name, d->gemm->k, d->gemm->n, gemm_has_one_matrix(d) ? 1 : gemm_weight_batches(d),
                              SM90_GEMM_STEP, t->tile_n / gemm_matrices(d));
}

cuda_boxes sm90_gemm_token_boxes(const sm90_prepared_a *tokens, const gemm_config *t, int64_t rows, int64_t batch_rows,
                                 int64_t batches, int32_t tile_m)
{
    const uint64_t row_bytes = (uint64_t)tokens->k_steps * SM90_GEMM_STEP * 2;
    return (cuda_boxes){.name = "tokens in workspace",
                        .at = tokens->data,
                        .dtype = NK_F16, /* either 16-bit type: nothing is converted */
                        .rank = 4,
                        .dims = {SM90_GEMM_SWIZZLE_K, (uint64_t)rows, 2 * (uint64_t)tokens->k_steps, (uint64_t)batches},
                        .strides = {row_bytes, 2 * SM90_GEMM_SWIZZLE_K, (uint64_t)batch_rows * row_bytes},
                        .box = {SM90_GEMM_SWIZZLE_K, (uint32_t)tile_m, 2 * (uint32_t)sm90_gemm_steps(t), 1},
                        .swizzle = CUDA_SWIZZLE_128,
                        .l2 = CUDA_L2_256};
}

/* 16-bit tokens as they lie. */
static cuda_boxes sm90_gemm_natural_boxes(const nk_gemm_problem *p, const gemm_config *t)
{
    return (cuda_boxes){
        .name = "tokens",
        .at = p->a.data,
        .dtype = p->a.dtype,
        .rank = 4,
        .dims = {SM90_GEMM_SWIZZLE_K, (uint64_t)p->m, (uint64_t)(p->k / SM90_GEMM_SWIZZLE_K), (uint64_t)p->l},
        .strides = {cuda_map_stride(p->a.row_stride, p->m), 2 * SM90_GEMM_SWIZZLE_K,
                    cuda_map_stride(p->a.batch_stride, p->l)},
        .box = {SM90_GEMM_SWIZZLE_K, (uint32_t)t->tile_m, 2 * (uint32_t)sm90_gemm_steps(t), 1},
        .swizzle = CUDA_SWIZZLE_128,
        .l2 = CUDA_L2_256};
}

/* Linear scale factors of experts. */
static cuda_boxes sm90_gemm_sf_boxes(const gemm_desc *d, const gemm_config *t, const nk_operand *b)
{
    const int64_t rows = d->gemm->n, batches = gemm_has_one_matrix(d) ? 1 : gemm_experts(d);
    return (cuda_boxes){
        .name = "scale factors",
        .at = b->sf,
        .dtype = NK_E4M3,
        .rank = 3,
        .dims = {(uint64_t)(d->gemm->k / NK_SF_VEC), (uint64_t)rows, (uint64_t)batches},
        .strides = {cuda_map_stride(b->sf_row_stride, rows), cuda_map_stride(b->sf_batch_stride, batches)},
        .box = {SM90_GEMM_SF_BOX_BYTES, (uint32_t)(t->tile_n / gemm_matrices(d)), 1},
        .swizzle = CUDA_SWIZZLE_NONE,
        .l2 = CUDA_L2_256};
}

typedef struct sm90_gemm_maps {
    cuda_tensor_map weights, ups, tokens;
    sm90_expert_maps experts;
} sm90_gemm_maps;

static nk_status sm90_gemm_encode_maps(const gemm_desc *d, const gemm_config *t, const sm90_gemm_params *params,
                                       const sm90_prepared_a *tokens, sm90_gemm_maps *maps)
{
    const nk_gemm_problem *p = d->gemm;
    const int64_t rows = p->m + sm90_gemm_spare_rows(d, t);
    const int32_t step = d->experts ? SM90_GEMM_TILE_M_STEP(t->tile_m) : t->tile_m;
    cuda_boxes boxes[4 + SM90_GEMM_MOST_TILE_M_STEPS];
    cuda_tensor_map *to[4 + SM90_GEMM_MOST_TILE_M_STEPS];
    int32_t count = 0;
    to[count] = &maps->weights;
    boxes[count++] = sm90_gemm_weight_boxes(d, t, "weights", &p->b);
    if (d->up) {
        to[count] = &maps->ups;
        boxes[count++] = sm90_gemm_weight_boxes(d, t, "ups", d->up);
    }
    for (int32_t i = 0; params->has_sf_boxes && i < gemm_matrices(d); i++) {
        to[count] = &maps->experts.sf[i];
        boxes[count++] = sm90_gemm_sf_boxes(d, t, i ? d->up : &p->b);
    }
    for (int32_t i = 0; (i + 1) * step <= t->tile_m; i++) {
        to[count] = d->experts ? &maps->experts.tokens[i] : &maps->tokens;
        boxes[count++] = t->natural_k ? sm90_gemm_natural_boxes(p, t)
                                      : sm90_gemm_token_boxes(tokens, t, rows, p->m, p->l, (i + 1) * step);
    }
    return cuda_encode_maps(p->device, count, boxes, to);
}

/* Whether the prologue kernel looks for experts' scale factors, for which it needs all its threads. */
static bool sm90_gemm_scans_experts(const gemm_desc *d)
{
    return d->experts && d->gemm->a.dtype == NK_E2M1X2 && d->gemm->a.sf_layout == NK_SF_BLOCKED && !gemm_gathers(d);
}

/* The kernel for a row a CTA, or for many. */
static cuda_kernel *sm90_gemm_prologue_of(const gemm_desc *d, bool many)
{
    if (d->gemm->a.dtype != NK_E2M1X2) return many ? &sm90_prepare_a_16bit_many : &sm90_prepare_a_16bit;
    if (sm90_gemm_scans_experts(d)) return many ? &sm90_prepare_a_experts_many : &sm90_prepare_a_experts;
    return many ? &sm90_prepare_a_codes_many : &sm90_prepare_a_codes;
}

static nk_status sm90_gemm_launch_prologue(const gemm_desc *d, const gemm_launch *c, sm90_prepared_a *tokens,
                                           sm90_gemm_experts *experts, const nk_exec *exec)
{
    const int64_t vectors = 16 * (int64_t)tokens->k_steps;
    const bool is_short = vectors < SM90_PREPARE_A_THREADS && !sm90_gemm_scans_experts(d);
    const int32_t threads = is_short ? 32 * (int32_t)nk_ceil_div(vectors, 32) : SM90_PREPARE_A_THREADS;
    const cuda_grid grid = {.x = nk_ceil_div(tokens->rows_with_spare, c->prologue_rows),
                            .y = nk_ceil_div(vectors, threads),
                            .threads = threads,
                            .overlap = c->overlap};
    return cuda_launch(sm90_gemm_prologue_of(d, c->prologue_rows > 1), d->gemm->device, exec->stream, &grid,
                       (void *[]){(void *)d->gemm, tokens, experts});
}

static nk_status sm90_gemm_launch(const gemm_desc *d, const gemm_launch *c, const nk_exec *exec)
{
    if (d->op == GEMM_LIST) return sm90_list_launch(d, c, exec);
    const gemm_config *t = &configs[c->config];
    const nk_grouped_gemm_problem *g = d->experts;
    const bool weights_first = c->pdl == NK_PDL_WEIGHTS;
    sm90_gemm_params params = sm90_gemm_params_of(d, t);
    params.weights_first = weights_first;
    sm90_prepared_a tokens = {.data = exec->workspace,
                              .rows_with_spare = sm90_gemm_workspace_rows(d, t),
                              .k_steps = params.k_steps,
                              .release_first = weights_first};
    sm90_gemm_experts experts = {.wait_first = weights_first};
    if (g) {
        experts = (sm90_gemm_experts){.offsets = g->offsets,
                                      .count = g->groups,
                                      .token_sf_bytes = g->a_sf_bytes,
                                      .rows = d->slice.rows,
                                      .first_row = (int32_t)d->slice.first_row,
                                      .wait_first = weights_first,
                                      .token_rows = g->rows,
                                      .encoded = g->encoded};
    }
    sm90_gemm_maps maps;
    NK_TRY(sm90_gemm_encode_maps(d, t, &params, &tokens, &maps));
    if (!t->natural_k) NK_TRY(sm90_gemm_launch_prologue(d, c, &tokens, &experts, exec));
    /* Kernels without experts take all but the last. */
    void *token_maps = g ? (void *)&maps.experts : &maps.tokens;
    void *with_up[] = {&maps.weights, &maps.ups, token_maps, (void *)(uintptr_t)d->params, &params, &experts};
    void *without[] = {&maps.weights, token_maps, (void *)(uintptr_t)d->params, &params, &experts};
    gemm_launch launch = *c;
    if (t->split_k > 1) launch.plan.grid = (int64_t)params.tiles * t->cluster; /* the last slice may have fewer tiles */
    return gemm_launch_kernel(d, &launch, d->up ? with_up : without, exec);
}

GEMM_FAMILY(sm90, gemm, NULL, SM90_GEMM_TILES, .schedules = SM90_LIST_SCHEDULES, .invariant = NK_TILE_ANY,
            .kernel = sm90_gemm_kernel_of, .why_not = sm90_gemm_why_not, .why_not_config = sm90_gemm_why_not_config,
            .us = sm90_gemm_us, .derive = sm90_gemm_derive, .launch = sm90_gemm_launch,
            .rows_at_once = sm90_gemm_rows_at_once);
