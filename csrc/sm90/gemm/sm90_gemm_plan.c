/* The tiles of the sm90 GEMM family, what they can serve, and how they divide it. */
#include "sm90_gemm_plan.h"

const sm90_gemm_shape sm90_gemm_shapes[SM90_GEMM_TILE_COUNT] = {
#define SHAPE(name, tokens, parts, cluster, slots, steps, early) \
    [SM90_GEMM_##name] = {tokens,                                \
                          parts,                                 \
                          cluster,                               \
                          slots,                                 \
                          steps,                                 \
                          SM90_GEMM_THREADS(tokens, parts),      \
                          SM90_GEMM_SMEM(tokens, cluster, slots, steps)},
    SM90_GEMM_TILES(SHAPE)
#undef SHAPE
};

#define NAME(name, ...) #name,
const nk_family sm90_gemm_family = {"sm90", "gemm", (const char *const[]){SM90_GEMM_TILES(NAME) NULL}};

#define LARGEST_EXTENT (1 << 30)          /* tensor maps and kernels count in 32 bits */
#define LARGEST_STRIDE ((int64_t)1 << 40) /* of a tensor map */

static bool is_multiple(const void *at, int64_t row, int64_t rows, int64_t batch, int64_t batches, int64_t of)
{
    return (uintptr_t)at % (uintptr_t)of == 0 && (rows <= 1 || row % of == 0) && (batches <= 1 || batch % of == 0);
}

int64_t sm90_gemm_batches(const sm90_gemm_product *p) { return p->offsets ? p->experts : p->first->l; }

static bool weights_have_map(const sm90_gemm_product *product, const nk_operand *b)
{
    const nk_gemm_problem *p = product->first;
    const int64_t batches = sm90_gemm_batches(product);
    return is_multiple(b->data, b->row_stride, p->n, b->batch_stride, batches, 16) &&
           (p->n <= 1 || (b->row_stride > 0 && b->row_stride < LARGEST_STRIDE)) &&
           (batches <= 1 || (b->batch_stride > 0 && b->batch_stride < LARGEST_STRIDE));
}

static bool factors_are_aligned(const sm90_gemm_product *product, const nk_operand *b, int64_t bytes)
{
    const int64_t rows = b->sf_layout == NK_SF_LINEAR ? product->first->n : 1;
    return is_multiple(b->sf, b->sf_row_stride, rows, b->sf_batch_stride, sm90_gemm_batches(product), bytes);
}

static int64_t steps_of(const nk_gemm_problem *p) { return nk_ceil_div(p->k, SM90_GEMM_STEP); }

int64_t sm90_gemm_workspace_bytes(const nk_gemm_problem *p) { return p->l * p->m * steps_of(p) * SM90_GEMM_STEP * 2; }

/* Of a batch; for experts as many as any offsets can need: each one with tokens may have a tile that is not full. */
static int64_t token_tiles_of(const sm90_gemm_product *product, const sm90_gemm_shape *t)
{
    const int64_t m = product->first->m, busy = product->experts < m ? product->experts : m;
    return product->offsets ? (m - busy) / t->tokens + busy : nk_ceil_div(m, t->tokens);
}

static double tiles_of(const sm90_gemm_product *product, const sm90_gemm_shape *t)
{
    const nk_gemm_problem *p = product->first;
    const int64_t row_tiles = nk_ceil_div(p->n, sm90_gemm_features(product));
    return (double)p->l * (double)row_tiles * (double)token_tiles_of(product, t);
}

static const char *why_not_weights(const sm90_gemm_product *product, const nk_operand *b)
{
    if (!weights_have_map(product, b))
        return "no tensor map describes the weights: K is no multiple of 32, or they are not aligned";
    if (!factors_are_aligned(product, b, b->sf_layout == NK_SF_LINEAR ? 4 : 16))
        return "the weights' scale factors are not aligned";
    return NULL;
}

const char *sm90_gemm_why_not(const sm90_gemm_product *product, const cuda_gpu *gpu, bool batch_invariant, int tile)
{
    const sm90_gemm_shape *t = &sm90_gemm_shapes[tile];
    const nk_gemm_problem *p = product->first;
    const nk_operand *a = &p->a;
    const int64_t tokens = a->dtype == NK_E2M1X2 ? 4 : 16;
    if (t->smem_bytes > gpu->smem_per_cta) return "its CTAs do not fit into shared memory";
    if (batch_invariant && !sm90_gemm_walks(t)) return "it divides K, so it cannot keep NVFP4KERN_BATCH_INVARIANT=1";
    if (p->k == 0) return "K is 0";
    if (sm90_gemm_batches(product) > LARGEST_EXTENT || p->m > LARGEST_EXTENT || p->n > LARGEST_EXTENT ||
        p->k > LARGEST_EXTENT || tiles_of(product, t) > LARGEST_EXTENT)
        return "L, M, N or K is larger than any tile of this family takes";
    if ((double)p->l * (double)p->m * (double)p->k * 2 > SM90_GEMM_MOST_WORKSPACE)
        return "the tokens take more than 256 MB in 16 bits";
    const char *why = why_not_weights(product, &p->b);
    if (!why && product->ups) why = why_not_weights(product, product->ups);
    if (why) return why;
    if (!is_multiple(a->data, a->row_stride, p->m, a->batch_stride, p->l, tokens)) return "the tokens are not aligned";
    return NULL;
}

sm90_gemm_work sm90_gemm_work_of(const sm90_gemm_product *product, int tile)
{
    const nk_gemm_problem *p = product->first;
    const sm90_gemm_shape *t = &sm90_gemm_shapes[tile];
    const int64_t row_tiles = nk_ceil_div(p->n, sm90_gemm_features(product)), token_tiles = token_tiles_of(product, t);
    return (sm90_gemm_work){
        .row_tiles = (int32_t)row_tiles,
        .token_tiles = (int32_t)token_tiles,
        .tiles = (int32_t)(p->l * row_tiles * token_tiles),
        .steps = (int32_t)steps_of(p),
        .slots_per_cta = (int32_t)nk_ceil_div(nk_ceil_div(steps_of(p), t->steps), t->cluster),
        .unit = p->a.dtype == NK_E2M1X2 ? 0x1p28f : 0x1p14f,
        .aligned_sf =
            factors_are_aligned(product, &p->b, 8) && (!product->ups || factors_are_aligned(product, product->ups, 8)),
    };
}
