/* Contiguous grouped_gemm of 16-bit weights on Hopper: which tile, its tensor maps, and its launch. */
#include "sm90_kind_f16.h"

#include "cuda/cuda_encode.h"
#include "sm90_kind_f16_config.h"
#include "sm90_kind_f16_costs.h"

typedef struct shape {
    int32_t tile_m, tile_n, tile_k, stages; /* see SM90_KIND_F16_TILES */
    int32_t threads, smem_bytes;
    cuda_kernel *kernels[2][2]; /* [bf16][along N] */
} shape;

static const shape shapes[SM90_KIND_F16_TILE_COUNT] = {
#define SHAPE(name, tile_m, tile_n, tile_k, stages)                                                          \
    [SM90_KIND_F16_##name] = {tile_m,                                                                        \
                              tile_n,                                                                        \
                              tile_k,                                                                        \
                              stages,                                                                        \
                              SM90_KIND_F16_THREADS(tile_n),                                                 \
                              SM90_KIND_F16_SMEM(tile_m, tile_n, tile_k, stages),                            \
                              {{&sm90_kind_f16_##name##_fp16_k_major, &sm90_kind_f16_##name##_fp16_n_major}, \
                               {&sm90_kind_f16_##name##_bf16_k_major, &sm90_kind_f16_##name##_bf16_n_major}}},
    SM90_KIND_F16_TILES(SHAPE)
#undef SHAPE
};

#define NAME(name, ...) #name,
const nk_family sm90_kind_f16_family = {"sm90", "kind_f16", (const char *const[]){SM90_KIND_F16_TILES(NAME) NULL},
                                        "halves"};

#define LARGEST_EXTENT (1 << 30)          /* tensor maps and kernels count in 32 bits */
#define LARGEST_STRIDE ((int64_t)1 << 40) /* of a tensor map */

static bool is_stride(int64_t stride, int64_t count)
{
    return count <= 1 || (stride > 0 && stride % 16 == 0 && stride < LARGEST_STRIDE);
}

static bool are_k_major(const nk_gemm_problem *p)
{
    return (p->k <= 1 || p->b.k_stride == 2) && is_stride(p->b.row_stride, p->n);
}

static bool are_n_major(const nk_gemm_problem *p)
{
    return (p->n <= 1 || p->b.row_stride == 2) && is_stride(p->b.k_stride, p->k);
}

static bool have_maps(const nk_grouped_gemm_problem *g)
{
    const nk_gemm_problem *p = &g->all;
    const uintptr_t begin = (uintptr_t)p->a.data | (uintptr_t)p->b.data;
    const bool batches = p->b.batch_stride == 0 || is_stride(p->b.batch_stride, g->groups);
    return begin % 16 == 0 && is_stride(p->a.row_stride, p->m) && batches && (are_k_major(p) || are_n_major(p));
}

/* Why no tile can serve the problem, or NULL. */
static const char *why_no_tile(const nk_grouped_gemm_problem *g)
{
    const nk_gemm_problem *p = &g->all;
    if (g->rows.data) return "rows by index: boxes of tensor maps have neighbours";
    if (g->groups == 0 || p->m == 0 || p->n == 0 || p->k == 0) return "there is nothing to multiply";
    if (g->groups > LARGEST_EXTENT || p->m > LARGEST_EXTENT || p->n > LARGEST_EXTENT || p->k > LARGEST_EXTENT)
        return "M, N, K or the number of experts is more than 2^30";
    if (!have_maps(g)) return "no tensor map describes tokens and weights: their rows are not aligned to 16 bytes";
    return NULL;
}

/* As many as any offsets can need: each expert with tokens may have a tile that is not full. */
static int64_t tiles_of(const nk_grouped_gemm_problem *g, const shape *t)
{
    const int64_t m = g->all.m, busy = g->groups < m ? g->groups : m;
    return nk_ceil_div(g->all.n, t->tile_n) * ((m - busy) / t->tile_m + busy);
}

static int64_t smem_bytes(const nk_grouped_gemm_problem *g, const shape *t)
{
    return t->smem_bytes + SM90_GEMM_EXPERT_BYTES(g->groups);
}

/* Why this tile cannot, where others may. */
static const char *why_not_tile(const nk_grouped_gemm_problem *g, const cuda_gpu *gpu, const shape *t)
{
    if (smem_bytes(g, t) > gpu->smem_per_cta) return "its CTAs do not fit into shared memory";
    if (tiles_of(g, t) >= LARGEST_EXTENT) return "there are more than 2^30 tiles";
    return NULL;
}

/* Microseconds, where all experts have as many rows. */
static double us_of(const nk_grouped_gemm_problem *g, const cuda_gpu *gpu, const shape *t)
{
    const nk_gemm_problem *p = &g->all;
    const int64_t busy = g->groups < p->m ? g->groups : p->m;
    const int64_t tiles = nk_ceil_div(p->n, t->tile_n) * busy * nk_ceil_div(nk_ceil_div(p->m, busy), t->tile_m);
    const double k_tiles = (double)nk_ceil_div(p->k, t->tile_k);
    const double tensor = t->tile_k / SM90_KIND_F16_SWIZZLE_K * t->tile_n * t->tile_m * SM90_KIND_F16_TENSOR_US;
    const double l2 = SM90_KIND_F16_STAGE_BYTES(t->tile_m, t->tile_n, t->tile_k) / SM90_KIND_F16_BYTES_PER_US;
    const double loop = k_tiles * (SM90_KIND_F16_STAGE_US + (tensor > l2 ? tensor : l2));
    const double tile = SM90_KIND_F16_TILE_US + t->tile_m * SM90_KIND_F16_TILE_TOKEN_US + loop;
    const double elements = (double)p->k * ((double)p->m + (double)busy * (double)p->n) + (double)p->m * (double)p->n;
    const double ctas = (double)nk_ceil_div(tiles, gpu->sms) * tile,
                 memory = 2 * elements / SM90_KIND_F16_MEMORY_PER_US;
    return SM90_KIND_F16_LAUNCH_US + (ctas > memory ? ctas : memory);
}

static int fastest_of(const nk_grouped_gemm_problem *g, const cuda_gpu *gpu, const char **why)
{
    int best = NK_TILE_ANY;
    double least = 0;
    for (int i = 0; i < SM90_KIND_F16_TILE_COUNT; i++) {
        const char *why_not = why_not_tile(g, gpu, &shapes[i]);
        if (why_not) {
            *why = why_not;
            continue;
        }
        const double us = us_of(g, gpu, &shapes[i]);
        if (best == NK_TILE_ANY || us < least) best = i, least = us;
    }
    return best;
}

static int64_t grid_of(const nk_grouped_gemm_problem *g, const shape *t, int32_t sms)
{
    const int64_t tiles = tiles_of(g, t);
    return tiles < sms ? tiles : sms;
}

nk_status sm90_kind_f16_plan(const nk_grouped_gemm_problem *g, const nk_settings *settings, nk_plan *plan,
                             sm90_kind_f16_choice *c)
{
    const nk_gemm_problem *p = &g->all;
    const int forced = nk_tile_forced(settings, &sm90_kind_f16_family);
    const char *why = why_no_tile(g);
    const cuda_gpu *gpu = NULL;
    int tile = forced;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    if (forced != NK_TILE_ANY) {
        if (!why) why = why_not_tile(g, gpu, &shapes[forced]);
        if (why) return NK_TILE_REFUSE(&sm90_kind_f16_family, forced, "%s", why);
    } else {
        if (why) return nk_decline(plan, why);
        tile = fastest_of(g, gpu, &why);
        if (tile == NK_TILE_ANY) return nk_decline(plan, why);
    }
    const shape *t = &shapes[tile];
    const bool n_major = !are_k_major(p);
    *c = (sm90_kind_f16_choice){.kernel = t->kernels[p->b.dtype == NK_BF16][n_major],
                                .tile = tile,
                                .sms = gpu->sms,
                                .n_major = n_major,
                                .overlap = settings->pdl != NK_PDL_OFF};
    plan->kernel = c->kernel->name;
    plan->why = forced != NK_TILE_ANY ? "CTAs walk over tiles" : "the fastest by cost: CTAs walk over tiles";
    plan->tile = sm90_kind_f16_family.tiles[tile];
    plan->tile_m = t->tile_m;
    plan->tile_n = t->tile_n;
    plan->tile_k = t->tile_k;
    plan->grid = grid_of(g, t, gpu->sms);
    plan->threads = t->threads;
    plan->stages = t->stages;
    plan->cluster = plan->split = 1;
    plan->batch_invariant = settings->batch_invariant;
    return NK_OK;
}

/* The stride of a dimension of extent 1 is unused, but must be a multiple of 16. */
static uint64_t stride_of(int64_t stride, int64_t count) { return count > 1 ? (uint64_t)stride : 16; }

static cuda_boxes boxes_of_weights(const nk_grouped_gemm_problem *g, const sm90_kind_f16_choice *c, bool one_matrix)
{
    const nk_gemm_problem *p = &g->all;
    const nk_operand *b = &p->b;
    const int64_t inner = c->n_major ? p->n : p->k, outer = c->n_major ? p->k : p->n,
                  matrices = one_matrix ? 1 : g->groups;
    return (cuda_boxes){
        .name = "weights",
        .at = b->data,
        .dtype = b->dtype,
        .rank = 3,
        .dims = {(uint64_t)inner, (uint64_t)outer, (uint64_t)matrices},
        .strides = {stride_of(c->n_major ? b->k_stride : b->row_stride, outer), stride_of(b->batch_stride, matrices)},
        .box = {SM90_KIND_F16_SWIZZLE_K, c->n_major ? SM90_KIND_F16_SWIZZLE_K : (uint32_t)shapes[c->tile].tile_n, 1},
        .swizzle = CUDA_SWIZZLE_128,
        .l2 = CUDA_L2_256};
}

static cuda_boxes boxes_of_tokens(const nk_gemm_problem *p, const shape *t)
{
    return (cuda_boxes){.name = "tokens",
                        .at = p->a.data,
                        .dtype = p->a.dtype,
                        .rank = 2,
                        .dims = {(uint64_t)p->k, (uint64_t)p->m},
                        .strides = {stride_of(p->a.row_stride, p->m)},
                        .box = {SM90_KIND_F16_SWIZZLE_K, (uint32_t)t->tile_m},
                        .swizzle = CUDA_SWIZZLE_128,
                        .l2 = CUDA_L2_256};
}

nk_status sm90_kind_f16_run(const nk_grouped_gemm_problem *g, const sm90_kind_f16_choice *c, const nk_exec *exec)
{
    const nk_gemm_problem *p = &g->all;
    const shape *t = &shapes[c->tile];
    const bool one_matrix = g->groups > 1 && p->b.batch_stride == 0;
    const cuda_boxes boxes[] = {boxes_of_weights(g, c, one_matrix), boxes_of_tokens(p, t)};
    cuda_tensor_map maps[2];
    NK_TRY(cuda_encode_maps(p->device, 2, boxes, (cuda_tensor_map *const[]){&maps[0], &maps[1]}));
    sm90_gemm_scheduler scheduler = {.n_tiles = (int32_t)nk_ceil_div(p->n, t->tile_n),
                                     .k_steps = (int32_t)nk_ceil_div(p->k, t->tile_k),
                                     .mma_scale = 1,
                                     .one_matrix = one_matrix};
    sm90_gemm_experts experts = {.offsets = g->offsets, .count = g->groups};
    const cuda_grid grid = {.x = grid_of(g, t, c->sms),
                            .y = 1,
                            .z = 1,
                            .threads = t->threads,
                            .smem_bytes = (int32_t)smem_bytes(g, t),
                            .overlap = c->overlap};
    void *args[] = {&maps[0], &maps[1], (void *)(uintptr_t)p, &scheduler, &experts};
    return cuda_launch(c->kernel, p->device, exec->stream, &grid, args);
}
