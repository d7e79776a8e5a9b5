/* gemm on Hopper: plan and run. Few tokens go to the gemv. The tensor cores' tiles run where NVFP4KERN_TILE forces one:
 * no GPU has timed them, so no plan chooses them by itself. */
#include "cuda/cuda_encode.h"
#include "sm90/gemv/sm90_gemv_deal.h"
#include "sm90_gemm_plan.h"

#define KERNELS(name, ...) [SM90_GEMM_##name] = {&sm90_gemm_##name##_halves, &sm90_gemm_##name##_bfloats},
static cuda_kernel *const kernels[SM90_GEMM_TILE_COUNT][2] = {SM90_GEMM_TILES(KERNELS)};

typedef struct product_choice {
    cuda_kernel *first, *product;
    int32_t tile, sms;
    nk_pdl pdl;
} product_choice;

typedef struct gemm_choice {
    bool is_gemv;
    union {
        sm90_gemv_choice gemv;
        product_choice product;
    };
} gemm_choice;

NK_CHOICE_FITS(gemm_choice);

/* CTAs of the product. */
static int64_t grid_of(const sm90_gemm_shape *t, const sm90_gemm_work *work, int32_t sms)
{
    if (sm90_gemm_walks(t) && work->tiles > sms) return sms;
    return (int64_t)work->tiles * t->cluster;
}

static nk_status plan_product(const nk_gemm_problem *p, const nk_settings *settings, int tile, nk_plan *plan,
                              product_choice *c)
{
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const char *why = sm90_gemm_why_not(p, gpu, settings->batch_invariant, tile);
    if (why) return NK_TILE_REFUSE(&sm90_gemm_family, tile, "%s", why);
    const sm90_gemm_shape *t = &sm90_gemm_shapes[tile];
    *c = (product_choice){.first = p->a.dtype == NK_E2M1X2 ? &sm90_gemm_tokens_codes : &sm90_gemm_tokens_halves,
                          .product = kernels[tile][p->a.dtype == NK_BF16],
                          .tile = tile,
                          .sms = gpu->sms,
                          .pdl = settings->pdl};
    const sm90_gemm_work work = sm90_gemm_work_of(p, tile);
    plan->kernel = c->product->name;
    plan->why = "a first kernel brings tokens to 16 bits, for wgmma";
    plan->tile = sm90_gemm_family.tiles[tile];
    plan->tile_m = t->tokens;
    plan->tile_n = SM90_GEMM_ROWS;
    plan->tile_k = SM90_GEMM_STEP * t->steps;
    plan->grid = grid_of(t, &work, gpu->sms);
    plan->threads = t->threads;
    plan->stages = t->slots;
    plan->cluster = t->cluster;
    plan->split = t->parts * t->cluster;
    plan->workspace_bytes = sm90_gemm_workspace_bytes(p);
    plan->batch_invariant = settings->batch_invariant;
    return NK_OK;
}

nk_status sm90_plan_gemm(const nk_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    gemm_choice *c = choice;
    const int forced = nk_tile_forced(settings, &sm90_gemm_family);
    c->is_gemv = forced == NK_TILE_ANY;
    if (c->is_gemv) return sm90_plan_gemv(p, settings, plan, &c->gemv);
    return plan_product(p, settings, forced, plan, &c->product);
}

/* The stride of a dimension of extent 1 is unused, but must be a multiple of 16. */
static uint64_t stride_of(int64_t stride, int64_t count) { return count > 1 ? (uint64_t)stride : 16; }

static nk_status encode_maps(const nk_gemm_problem *p, const sm90_gemm_shape *t, const sm90_gemm_tokens *x,
                             cuda_tensor_map *weights, cuda_tensor_map *tokens)
{
    const nk_operand *b = &p->b;
    const cuda_boxes boxes[] = {
        {.name = "weights",
         .at = b->data,
         .dtype = NK_E2M1X2,
         .rank = 3,
         .dims = {(uint64_t)p->k / 2, (uint64_t)p->n, (uint64_t)p->l},
         .strides = {stride_of(b->row_stride, p->n), stride_of(b->batch_stride, p->l)},
         .box = {SM90_GEMM_CODE_BYTES, SM90_GEMM_ROWS, 1},
         .swizzle = CUDA_SWIZZLE_64,
         .l2 = CUDA_L2_256},
        {.name = "tokens in workspace",
         .at = x->at,
         .dtype = NK_F16,
         .rank = 4,
         .dims = {SM90_GEMM_PANEL, (uint64_t)p->m, 2 * (uint64_t)x->steps, (uint64_t)p->l},
         .strides = {(uint64_t)x->row_bytes, 2 * SM90_GEMM_PANEL, (uint64_t)x->batch_bytes},
         .box = {SM90_GEMM_PANEL, (uint32_t)t->tokens, 2 * (uint32_t)t->steps, 1},
         .swizzle = CUDA_SWIZZLE_128,
         .l2 = CUDA_L2_256},
    };
    return cuda_encode_maps(p->device, 2, boxes, (cuda_tensor_map *[]){weights, tokens});
}

static nk_status run_product(const nk_gemm_problem *p, const product_choice *c, const nk_exec *exec)
{
    const sm90_gemm_shape *t = &sm90_gemm_shapes[c->tile];
    sm90_gemm_work work = sm90_gemm_work_of(p, c->tile);
    const int64_t row_bytes = (int64_t)work.steps * SM90_GEMM_STEP * 2, pieces = p->l * p->m * row_bytes / 16;
    sm90_gemm_tokens tokens = {.at = exec->workspace,
                               .row_bytes = row_bytes,
                               .batch_bytes = p->m * row_bytes,
                               .steps = work.steps,
                               .release_first = c->pdl == NK_PDL_WEIGHTS};
    const bool overlap = c->pdl != NK_PDL_OFF;
    const cuda_grid first = {.x = nk_ceil_div(pieces, SM90_GEMM_TOKEN_THREADS),
                             .y = 1,
                             .z = 1,
                             .threads = SM90_GEMM_TOKEN_THREADS,
                             .overlap = overlap};
    const cuda_grid product = {.x = grid_of(t, &work, c->sms),
                               .y = 1,
                               .z = 1,
                               .threads = t->threads,
                               .smem_bytes = t->smem_bytes,
                               .cluster.x = t->cluster,
                               .overlap = overlap};
    cuda_tensor_map weights, x;
    NK_TRY(encode_maps(p, t, &tokens, &weights, &x));
    nk_gemm_problem copy = *p;
    NK_TRY(cuda_launch(c->first, p->device, exec->stream, &first, (void *[]){&copy, &tokens}));
    return cuda_launch(c->product, p->device, exec->stream, &product, (void *[]){&weights, &x, &copy, &work});
}

nk_status sm90_run_gemm(const nk_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const gemm_choice *c = choice;
    if (c->is_gemv) return sm90_run_gemv(p, &c->gemv, exec);
    return run_product(p, &c->product, exec);
}
