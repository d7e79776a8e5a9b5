/* A product by the sm90 GEMM family: its plan, and its two launches. */
#include "cuda/cuda_encode.h"
#include "sm90_gemm_plan.h"

/* CTAs of the product. */
static int64_t grid_of(const sm90_gemm_shape *t, const sm90_gemm_scheduler *scheduler, int32_t sms)
{
    if (sm90_gemm_walks(t) && scheduler->tiles > sms) return sms;
    return (int64_t)scheduler->tiles * t->cluster;
}

static cuda_kernel *first_kernel(const sm90_gemm_product *product)
{
    const nk_operand *a = &product->first->a;
    if (a->dtype != NK_E2M1X2) return &sm90_prepare_a_16bit;
    const bool by_expert = product->offsets && !product->rows.data && a->sf_layout == NK_SF_BLOCKED;
    return by_expert ? &sm90_prepare_a_experts : &sm90_prepare_a_codes;
}

nk_status sm90_gemm_plan(const sm90_gemm_product *product, const nk_settings *settings,
                         const sm90_gemm_kernels kernels[SM90_GEMM_TILE_COUNT], int tile, nk_plan *plan,
                         sm90_gemm_choice *c)
{
    const nk_gemm_problem *p = product->first;
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const char *why = sm90_gemm_why_not(product, gpu, settings->batch_invariant, tile);
    if (why) return NK_TILE_REFUSE(&sm90_gemm_family, tile, "%s", why);
    const sm90_gemm_shape *t = &sm90_gemm_shapes[tile];
    *c = (sm90_gemm_choice){.first = first_kernel(product),
                            .product = kernels[tile][p->a.dtype == NK_BF16],
                            .tile = tile,
                            .sms = gpu->sms,
                            .pdl = settings->pdl};
    const sm90_gemm_scheduler scheduler = sm90_gemm_scheduler_of(product, tile);
    plan->kernel = c->product->name;
    plan->why = "a first kernel brings tokens to 16 bits, for wgmma";
    plan->tile = sm90_gemm_family.tiles[tile];
    plan->tile_m = t->tokens;
    plan->tile_n = sm90_gemm_features(product, t);
    plan->tile_k = SM90_GEMM_STEP * t->steps;
    plan->grid = grid_of(t, &scheduler, gpu->sms);
    plan->threads = t->threads;
    plan->stages = t->slots;
    plan->cluster = t->cluster;
    plan->split = sm90_gemm_divisions(t);
    plan->workspace_bytes = sm90_gemm_workspace_bytes(product, t);
    plan->batch_invariant = settings->batch_invariant;
    return NK_OK;
}

/* The stride of a dimension of extent 1 is unused, but must be a multiple of 16. */
static uint64_t stride_of(int64_t stride, int64_t count) { return count > 1 ? (uint64_t)stride : 16; }

cuda_boxes sm90_gemm_weight_boxes(const sm90_gemm_product *product, const sm90_gemm_shape *t, const char *name,
                                  const nk_operand *b)
{
    const nk_gemm_problem *p = product->first;
    const int64_t batches = sm90_gemm_has_one_matrix(product) ? 1 : sm90_gemm_batches(product);
    return (cuda_boxes){.name = name,
                        .at = b->data,
                        .dtype = NK_E2M1X2,
                        .rank = 3,
                        .dims = {(uint64_t)p->k / 2, (uint64_t)p->n, (uint64_t)batches},
                        .strides = {stride_of(b->row_stride, p->n), stride_of(b->batch_stride, batches)},
                        .box = {SM90_GEMM_CODE_BYTES, (uint32_t)sm90_gemm_slot_features(product, t), 1},
                        .swizzle = CUDA_SWIZZLE_64,
                        .l2 = CUDA_L2_256};
}

cuda_boxes sm90_gemm_token_boxes(const sm90_prepared_a *x, int64_t rows, int64_t batch_rows, int64_t batches,
                                 int32_t tokens, int32_t steps)
{
    const uint64_t row_bytes = (uint64_t)x->k_steps * SM90_GEMM_STEP * 2;
    return (cuda_boxes){.name = "tokens in workspace",
                        .at = x->data,
                        .dtype = NK_F16,
                        .rank = 4,
                        .dims = {SM90_GEMM_SWIZZLE_K, (uint64_t)rows, 2 * (uint64_t)x->k_steps, (uint64_t)batches},
                        .strides = {row_bytes, 2 * SM90_GEMM_SWIZZLE_K, (uint64_t)batch_rows * row_bytes},
                        .box = {SM90_GEMM_SWIZZLE_K, (uint32_t)tokens, 2 * (uint32_t)steps, 1},
                        .swizzle = CUDA_SWIZZLE_128,
                        .l2 = CUDA_L2_256};
}

/* maps: of the tokens, the weights and, where there are, the ups. */
static nk_status encode_maps(const sm90_gemm_product *product, const sm90_gemm_shape *t, const sm90_prepared_a *x,
                             cuda_tensor_map maps[3])
{
    const nk_gemm_problem *p = product->first;
    const cuda_boxes boxes[] = {
        sm90_gemm_token_boxes(x, p->m + sm90_gemm_spare_rows(product, t), p->m, p->l, t->tokens, t->steps),
        sm90_gemm_weight_boxes(product, t, "weights", &p->b),
        product->ups ? sm90_gemm_weight_boxes(product, t, "ups", product->ups) : (cuda_boxes){0},
    };
    cuda_tensor_map *const to[] = {&maps[0], &maps[1], &maps[2]};
    return cuda_encode_maps(p->device, product->ups ? 3 : 2, boxes, to);
}

nk_status sm90_gemm_run(const sm90_gemm_product *of, const sm90_gemm_choice *c, const nk_exec *exec)
{
    const nk_gemm_problem *p = of->first;
    const sm90_gemm_shape *t = &sm90_gemm_shapes[c->tile];
    sm90_gemm_scheduler scheduler = sm90_gemm_scheduler_of(of, c->tile);
    const int64_t pieces = 16 * (int64_t)scheduler.k_steps; /* of a row */
    sm90_prepared_a tokens = {.data = exec->workspace,
                              .k_steps = scheduler.k_steps,
                              .release_first = c->pdl == NK_PDL_WEIGHTS,
                              .rows = of->rows};
    const bool overlap = c->pdl != NK_PDL_OFF;
    const int32_t threads = pieces < SM90_PREPARE_A_THREADS && c->first != &sm90_prepare_a_experts
                                ? 32 * (int32_t)nk_ceil_div(pieces, 32)
                                : SM90_PREPARE_A_THREADS;
    const cuda_grid first = {.x = p->l * p->m + sm90_gemm_spare_rows(of, t),
                             .y = nk_ceil_div(pieces, threads),
                             .z = 1,
                             .threads = threads,
                             .overlap = overlap};
    const cuda_grid product = {.x = grid_of(t, &scheduler, c->sms),
                               .y = 1,
                               .z = 1,
                               .threads = t->threads,
                               .smem_bytes = sm90_gemm_smem_bytes(of, t),
                               .cluster.x = t->cluster,
                               .overlap = overlap};
    sm90_gemm_experts experts = {of->offsets, of->experts, of->token_sf_bytes, c->pdl == NK_PDL_WEIGHTS};
    cuda_tensor_map maps[3];
    NK_TRY(encode_maps(of, t, &tokens, maps));
    NK_TRY(cuda_launch(c->first, p->device, exec->stream, &first, (void *[]){(void *)p, &tokens, &experts}));
    /* Kernels without experts take all but the last. */
    void *with_ups[] = {&maps[1], &maps[2], &maps[0], (void *)of->problem, &scheduler, &experts};
    void *without[] = {&maps[1], &maps[0], (void *)of->problem, &scheduler, &experts};
    return cuda_launch(c->product, p->device, exec->stream, &product, of->ups ? with_ups : without);
}
