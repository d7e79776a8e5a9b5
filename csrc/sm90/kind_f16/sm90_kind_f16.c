/* The sm90 kind_f16 family: contiguous grouped_gemm of 16-bit weights by wgmma. */
#include "sm90/gemm/sm90_gemm_family.h"
#include "sm90_kind_f16_config.h"
#include "sm90_kind_f16_costs.h"

static const gemm_config configs[SM90_KIND_F16_TILE_COUNT] = {
#define CONFIG(name, tokens, rows, k, pipeline_stages)   \
    [SM90_KIND_F16_##name] = {.tile_m = tokens,          \
                              .tile_n = rows,            \
                              .tile_k = k,               \
                              .stages = pipeline_stages, \
                              .cluster = 1,              \
                              .split_k = 1,              \
                              .warpgroups = (rows) / 64},
    SM90_KIND_F16_TILES(CONFIG)
#undef CONFIG
};

/* [bf16][N-major weights] */
typedef cuda_kernel *kernels_of_tile[2][2];
static const kernels_of_tile kernels[SM90_KIND_F16_TILE_COUNT] = {
#define KERNELS(name, ...)                                                                                  \
    [SM90_KIND_F16_##name] = {{&sm90_kind_f16_##name##_fp16_k_major, &sm90_kind_f16_##name##_fp16_n_major}, \
                              {&sm90_kind_f16_##name##_bf16_k_major, &sm90_kind_f16_##name##_bf16_n_major}},
    SM90_KIND_F16_TILES(KERNELS)
#undef KERNELS
};

static int32_t sm90_f16_panels(const gemm_config *t) { return t->tile_k / SM90_KIND_F16_SWIZZLE_K; }

static bool sm90_f16_are_k_major(const nk_gemm_problem *p)
{
    return (p->k <= 1 || p->b.k_stride == 2) && cuda_is_stride(p->b.row_stride, p->n);
}

static bool sm90_f16_are_n_major(const nk_gemm_problem *p)
{
    return (p->n <= 1 || p->b.row_stride == 2) && cuda_is_stride(p->b.k_stride, p->k);
}

static cuda_kernel *sm90_f16_kernel_of(const gemm_desc *d, int config)
{
    if (d->op != GEMM_GROUPED || d->activation || d->gemm->b.dtype == NK_E2M1X2) return NULL; /* NVFP4 is for experts */
    return kernels[config][d->gemm->b.dtype == NK_BF16][!sm90_f16_are_k_major(d->gemm)];
}

static bool sm90_f16_have_maps(const gemm_desc *d)
{
    const nk_gemm_problem *p = d->gemm;
    const uintptr_t begin = (uintptr_t)p->a.data | (uintptr_t)p->b.data;
    const bool batches = p->b.batch_stride == 0 || cuda_is_stride(p->b.batch_stride, gemm_experts(d));
    return begin % 16 == 0 && cuda_is_stride(p->a.row_stride, p->m) && batches &&
           (sm90_f16_are_k_major(p) || sm90_f16_are_n_major(p));
}

static const char *sm90_f16_why_not(const gemm_desc *d, const gemm_query *q)
{
    (void)q;
    const nk_gemm_problem *p = d->gemm;
    if (gemm_gathers(d)) return "rows by index: boxes of tensor maps have neighbours";
    if (p->m == 0 || p->n == 0 || p->k == 0) return "there is nothing to multiply";
    const char *why = gemm_why_not_sizes(d);
    if (why) return why;
    return sm90_f16_have_maps(d) ? NULL : GEMM_NO_MAP("tokens and weights");
}

static int64_t sm90_f16_tiles_of(const gemm_desc *d, const gemm_config *t)
{
    return gemm_n_tiles(d, t, d->gemm->n) * gemm_m_tiles(d, t->tile_m);
}

static int64_t sm90_f16_smem_bytes(const gemm_desc *d, const gemm_config *t)
{
    return SM90_KIND_F16_SMEM(t->tile_m, t->tile_n, t->tile_k, t->stages) + SM90_GEMM_EXPERT_BYTES(gemm_experts(d));
}

static const char *sm90_f16_why_not_config(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    const gemm_config *t = &configs[c->config];
    if (sm90_f16_smem_bytes(d, t) > q->gpu->smem_per_cta) return GEMM_NO_SMEM;
    return sm90_f16_tiles_of(d, t) < GEMM_LARGEST ? NULL : GEMM_TOO_LARGE;
}

/* If all experts have as many rows. */
static double sm90_f16_us_of(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    const nk_gemm_problem *p = d->gemm;
    const gemm_config *t = &configs[c->config];
    const int64_t m = gemm_expected_m(d), busy = gemm_experts(d) < m ? gemm_experts(d) : m;
    const int64_t tiles = gemm_n_tiles(d, t, p->n) * gemm_even_m_tiles(d, t->tile_m);
    const double stages = (double)nk_ceil_div(p->k, t->tile_k);
    const double tensor = sm90_f16_panels(t) * t->tile_n * t->tile_m * SM90_KIND_F16_TENSOR_US;
    const double l2 = SM90_KIND_F16_STAGE_BYTES(t->tile_m, t->tile_n, t->tile_k) / SM90_KIND_F16_BYTES_PER_US;
    const double loop = stages * (SM90_KIND_F16_STAGE_US + (tensor > l2 ? tensor : l2));
    const double tile = SM90_KIND_F16_TILE_US + t->tile_m * SM90_KIND_F16_TILE_TOKEN_US + loop;
    const double elements = (double)p->k * ((double)m + (double)busy * (double)p->n) + (double)m * (double)p->n;
    const double ctas = (double)nk_ceil_div(tiles, q->gpu->sms) * tile,
                 memory = 2 * elements / SM90_KIND_F16_MEMORY_PER_US;
    return SM90_KIND_F16_LAUNCH_US + (ctas > memory ? ctas : memory);
}

static void sm90_f16_derive(const gemm_desc *d, const gemm_query *q, gemm_launch *c)
{
    const gemm_config *t = &configs[c->config];
    const int64_t tiles = sm90_f16_tiles_of(d, t);
    c->plan.grid = tiles < q->gpu->sms ? tiles : q->gpu->sms;
    c->plan.threads = SM90_KIND_F16_THREADS(t->tile_n);
    c->smem_bytes = (int32_t)sm90_f16_smem_bytes(d, t);
    c->plan.why = q->forced != NK_TILE_ANY ? "persistent CTAs" : "the fastest by cost: persistent CTAs";
}

static cuda_boxes sm90_f16_weight_boxes(const gemm_desc *d, const gemm_config *t)
{
    const nk_gemm_problem *p = d->gemm;
    const int64_t matrices = gemm_has_one_matrix(d) ? 1 : gemm_experts(d);
    nk_operand b = p->b;
    if (sm90_f16_are_k_major(p))
        return cuda_k_major_boxes(&b, "weights", p->k, p->n, matrices, SM90_KIND_F16_SWIZZLE_K, t->tile_n);
    b.row_stride = b.k_stride; /* N takes K's part */
    return cuda_k_major_boxes(&b, "weights", p->n, p->k, matrices, SM90_KIND_F16_SWIZZLE_K, SM90_KIND_F16_SWIZZLE_K);
}

static nk_status sm90_f16_launch(const gemm_desc *d, const gemm_launch *c, const nk_exec *exec)
{
    const nk_gemm_problem *p = d->gemm;
    const gemm_config *t = &configs[c->config];
    const cuda_boxes boxes[] = {sm90_f16_weight_boxes(d, t),
                                cuda_k_major_boxes(&p->a, "tokens", p->k, p->m, 0, SM90_KIND_F16_SWIZZLE_K, t->tile_m)};
    cuda_tensor_map maps[2];
    NK_TRY(cuda_encode_maps(p->device, 2, boxes, (cuda_tensor_map *const[]){&maps[0], &maps[1]}));
    sm90_gemm_params params = {.n_tiles = (int32_t)nk_ceil_div(p->n, t->tile_n),
                               .k_steps = (int32_t)nk_ceil_div(p->k, t->tile_k),
                               .mma_scale = 1,
                               .one_matrix = gemm_has_one_matrix(d)};
    sm90_gemm_experts experts = {.offsets = d->experts->offsets, .count = gemm_experts(d)};
    return gemm_launch_kernel(d, c, (void *[]){&maps[0], &maps[1], (void *)(uintptr_t)p, &params, &experts}, exec);
}

GEMM_FAMILY(sm90, kind_f16, "halves", SM90_KIND_F16_TILES, .schedules = 1, .invariant = NK_TILE_ANY,
            .kernel = sm90_f16_kernel_of, .why_not = sm90_f16_why_not, .why_not_config = sm90_f16_why_not_config,
            .us = sm90_f16_us_of, .derive = sm90_f16_derive, .launch = sm90_f16_launch);
