/* The tiles of the sm90 GEMM family, what they can serve, and how they divide it. */
#include "sm90_gemm_plan.h"

#include "nk_memo.h"
#include "sm90_gemm_model.h"

const sm90_gemm_shape sm90_gemm_shapes[SM90_GEMM_TILE_COUNT] = {
#define SHAPE(name, tokens, rows, parts, cluster, slots, steps, early)             \
    [SM90_GEMM_##name] = {tokens,                                                  \
                          rows,                                                    \
                          parts,                                                   \
                          cluster,                                                 \
                          slots,                                                   \
                          steps,                                                   \
                          SM90_GEMM_THREADS(tokens, rows, parts),                  \
                          {SM90_GEMM_SMEM(tokens, rows, cluster, slots, steps, 1), \
                           SM90_GEMM_SMEM(tokens, rows, cluster, slots, steps, 2)}},
    SM90_GEMM_TILES(SHAPE)
#undef SHAPE
};

#define NAME(name, ...) #name,
const nk_family sm90_gemm_family = {"sm90", "gemm", (const char *const[]){SM90_GEMM_TILES(NAME) NULL}, NULL};

#define LARGEST_EXTENT (1 << 30)          /* tensor maps and kernels count in 32 bits */
#define LARGEST_STRIDE ((int64_t)1 << 40) /* of a tensor map */

/* Of a power of two. */
static bool is_multiple(const void *at, int64_t row, int64_t rows, int64_t batch, int64_t batches, int64_t of)
{
    const uint64_t bits =
        (uint64_t)(uintptr_t)at | (rows > 1 ? (uint64_t)row : 0) | (batches > 1 ? (uint64_t)batch : 0);
    return (bits & (uint64_t)(of - 1)) == 0;
}

int64_t sm90_gemm_batches(const sm90_gemm_product *p) { return p->offsets ? p->experts : p->first->l; }

static bool weights_have_map(const sm90_gemm_product *product, const nk_operand *b)
{
    const nk_gemm_problem *p = product->first;
    const int64_t batches = sm90_gemm_batches(product);
    return is_multiple(b->data, b->row_stride, p->n, b->batch_stride, batches, 16) &&
           (p->n <= 1 || (b->row_stride > 0 && b->row_stride < LARGEST_STRIDE)) &&
           (batches <= 1 || (b->batch_stride >= 0 && b->batch_stride < LARGEST_STRIDE));
}

static bool factors_are_aligned(const sm90_gemm_product *product, const nk_operand *b, int64_t bytes)
{
    const int64_t rows = b->sf_layout == NK_SF_LINEAR ? product->first->n : 1;
    return is_multiple(b->sf, b->sf_row_stride, rows, b->sf_batch_stride, sm90_gemm_batches(product), bytes);
}

static int64_t steps_of(const nk_gemm_problem *p) { return nk_ceil_div(p->k, SM90_GEMM_STEP); }

static int64_t row_bytes_of(const nk_gemm_problem *p) { return steps_of(p) * SM90_GEMM_STEP * 2; }

int64_t sm90_gemm_spare_rows(const sm90_gemm_product *product, const sm90_gemm_shape *t)
{
    const int64_t m = product->first->m;
    return product->offsets ? t->tokens : nk_ceil_div(m, t->tokens) * t->tokens - m;
}

int64_t sm90_gemm_workspace_bytes(const sm90_gemm_product *product, const sm90_gemm_shape *t)
{
    const nk_gemm_problem *p = product->first;
    return (p->l * p->m + sm90_gemm_spare_rows(product, t)) * row_bytes_of(p);
}

/* Rows that every tile has workspace for. */
static int64_t room_for(const nk_gemm_problem *p)
{
    return SM90_GEMM_MOST_WORKSPACE / row_bytes_of(p) - SM90_GEMM_MAX_TILE_M;
}

sm90_gemm_slices sm90_gemm_slices_of(const nk_gemm_problem *p)
{
    if (p->l == 0 || p->m == 0 || p->k == 0) return (sm90_gemm_slices){p->m, p->l};
    const int64_t room = room_for(p);
    if (p->m <= room / p->l) return (sm90_gemm_slices){p->m, p->l};
    if (p->m <= room) return (sm90_gemm_slices){p->m, room / p->m};
    return (sm90_gemm_slices){room / SM90_GEMM_SLICE_ROWS * SM90_GEMM_SLICE_ROWS, 1};
}

bool sm90_gemm_slices_are_aligned(const nk_gemm_problem *p, const nk_operand *ups)
{
    if (p->l <= 1 || sm90_gemm_slices_of(p).batches >= p->l) return true;
    const int64_t strides = p->a.batch_stride | p->b.batch_stride | p->b.sf_batch_stride;
    return ((strides | (ups ? ups->batch_stride | ups->sf_batch_stride : 0)) & 15) == 0;
}

static const uint8_t *moved(const uint8_t *at, int64_t bytes) { return at ? at + bytes : NULL; }

void sm90_gemm_move_weights(nk_operand *b, int64_t batch)
{
    b->data = moved(b->data, batch * b->batch_stride);
    b->sf = moved(b->sf, batch * b->sf_batch_stride);
}

void sm90_gemm_move_tokens(nk_operand *a, nk_output *d, int64_t k, int64_t batch, int64_t row)
{
    const int64_t atoms_bytes = nk_sf_padded_cols(k / NK_SF_VEC) * NK_SF_ATOM_ROWS;
    sm90_gemm_move_weights(a, batch);
    a->data = moved(a->data, row * a->row_stride);
    a->sf = moved(a->sf, a->sf_layout == NK_SF_LINEAR ? row * a->sf_row_stride : row / NK_SF_ATOM_ROWS * atoms_bytes);
    if (d->data) d->data += batch * d->batch_stride + row * d->row_stride;
}

/* Of a batch; for experts as many as any offsets can need: each one with tokens may have a tile that is not full. */
static int64_t token_tiles_of(const sm90_gemm_product *product, const sm90_gemm_shape *t)
{
    const int64_t m = product->first->m, busy = product->experts < m ? product->experts : m;
    return product->offsets ? (m - busy) / t->tokens + busy : nk_ceil_div(m, t->tokens);
}

int32_t sm90_gemm_smem_bytes(const sm90_gemm_product *p, const sm90_gemm_shape *t)
{
    const int64_t list = p->offsets ? SM90_GEMM_EXPERT_BYTES(p->experts) : 0;
    const int32_t bytes = t->smem_bytes[p->ups != NULL];
    return (int32_t)(list < INT32_MAX - bytes ? bytes + list : INT32_MAX);
}

static double tiles_of(const sm90_gemm_product *product, const sm90_gemm_shape *t)
{
    const nk_gemm_problem *p = product->first;
    const int64_t row_tiles = nk_ceil_div(p->n, sm90_gemm_features(product, t));
    return (double)p->l * (double)row_tiles * (double)token_tiles_of(product, t);
}

#define TOO_LARGE "L, M, N or K is larger than any tile of this family takes"

static const char *why_not_weights(const sm90_gemm_product *product, const nk_operand *b)
{
    if (!weights_have_map(product, b))
        return "no tensor map describes the weights: K is no multiple of 32, or they are not aligned";
    if (!factors_are_aligned(product, b, b->sf_layout == NK_SF_LINEAR ? 4 : 16))
        return "the weights' scale factors are not aligned";
    return NULL;
}

/* Why no tile can serve the product, or NULL. */
static const char *why_no_tile(const sm90_gemm_product *product)
{
    const nk_gemm_problem *p = product->first;
    const nk_operand *a = &p->a;
    const int64_t token_bytes = a->dtype == NK_E2M1X2 ? 4 : 16,
                  tokens = product->rows.data ? product->rows.tokens : p->m;
    if (p->k == 0) return "K is 0";
    if (sm90_gemm_batches(product) > LARGEST_EXTENT || p->m > LARGEST_EXTENT || p->n > LARGEST_EXTENT ||
        p->k > LARGEST_EXTENT)
        return TOO_LARGE;
    if (room_for(p) < SM90_GEMM_SLICE_ROWS) return "K is more than 2^18";
    if (product->offsets && p->m > room_for(p)) return "the tokens take more than 256 MB in 16 bits";
    const char *why = why_not_weights(product, &p->b);
    if (!why && product->ups) why = why_not_weights(product, product->ups);
    if (why) return why;
    if (product->ups && p->l > 1 && (p->b.batch_stride == 0) != (product->ups->batch_stride == 0))
        return "one of b1 and b2 is the same for all batches";
    if (!is_multiple(a->data, a->row_stride, tokens, a->batch_stride, p->l, token_bytes))
        return "the tokens are not aligned";
    return NULL;
}

/* Why this tile cannot, where others may. */
static const char *why_not_tile(const sm90_gemm_product *product, const cuda_gpu *gpu, bool batch_invariant, int tile)
{
    const sm90_gemm_shape *t = &sm90_gemm_shapes[tile];
    if (product->tiles && !(product->tiles >> tile & 1)) return "the operator has no kernel of it";
    if (sm90_gemm_smem_bytes(product, t) > gpu->smem_per_cta) return "its CTAs do not fit into shared memory";
    if (batch_invariant && !sm90_gemm_walks(t)) return "it divides K, so it cannot keep NVFP4KERN_BATCH_INVARIANT=1";
    if (product->offsets && !sm90_gemm_walks(t)) return "it divides K, which no tile of experts does";
    return tiles_of(product, t) >= LARGEST_EXTENT ? TOO_LARGE : NULL;
}

const char *sm90_gemm_why_not(const sm90_gemm_product *product, const cuda_gpu *gpu, bool batch_invariant, int tile)
{
    const char *why = why_not_tile(product, gpu, batch_invariant, tile);
    return why ? why : why_no_tile(product);
}

typedef struct fastest {
    int64_t tile;
    double us;
} fastest;

static fastest fastest_of(const sm90_gemm_sizes *sizes)
{
    fastest best = {.tile = NK_TILE_ANY};
    for (int tile = 0; tile < SM90_GEMM_TILE_COUNT; tile++) {
        const sm90_gemm_shape *t = &sm90_gemm_shapes[tile];
        if (!(sizes->usable >> tile & 1)) continue;
        const double us = sm90_gemm_us(sizes, t);
        if (best.tile == NK_TILE_ANY || us < best.us) best = (fastest){tile, us};
    }
    return best;
}

sm90_gemm_pick sm90_gemm_pick_of(const sm90_gemm_product *product, const cuda_gpu *gpu, bool batch_invariant)
{
    NK_MEMO(sm90_gemm_sizes, fastest, memo); /* the next calls ask the same */
    const nk_gemm_problem *p = product->first;
    sm90_gemm_sizes sizes = {.gpu = gpu,
                             .l = p->l,
                             .m = p->m,
                             .n = p->n,
                             .k = p->k,
                             .experts = product->offsets ? product->experts : 0,
                             .matrices = product->ups ? 2 : 1,
                             .lanes_copy = product->ups || p->b.sf_layout == NK_SF_LINEAR};
    const char *why = why_no_tile(product);
    if (why) return (sm90_gemm_pick){.tile = NK_TILE_ANY, .why_not = why};
    for (int tile = 0; tile < SM90_GEMM_TILE_COUNT; tile++) {
        const char *why_not = why_not_tile(product, gpu, batch_invariant, tile);
        if (why_not) why = why_not;
        sizes.usable |= (int64_t)!why_not << tile;
    }
    const size_t at = nk_memo_slot(&sizes, sizeof sizes);
    if (memcmp(&memo[at].asked, &sizes, sizeof sizes) != 0) {
        memo[at].answer = fastest_of(&sizes);
        memo[at].asked = sizes;
    }
    const fastest *found = &memo[at].answer;
    return (sm90_gemm_pick){.tile = (int)found->tile, .us = found->us, .why_not = why};
}

nk_status sm90_gemm_plan_picked(const sm90_gemm_product *product, const nk_settings *settings,
                                const sm90_gemm_kernels kernels[SM90_GEMM_TILE_COUNT], const sm90_gemm_pick *pick,
                                nk_plan *plan, sm90_gemm_choice *choice)
{
    if (pick->tile == NK_TILE_ANY) return nk_decline(plan, pick->why_not);
    NK_TRY(sm90_gemm_plan(product, settings, kernels, pick->tile, plan, choice));
    plan->why = sm90_gemm_walks(&sm90_gemm_shapes[pick->tile])
                    ? "the fastest by cost: CTAs walk over whole tiles; a first kernel brings tokens to 16 bits"
                    : "the fastest by cost: K of a tile is divided; a first kernel brings tokens to 16 bits";
    return NK_OK;
}

bool sm90_gemm_has_one_matrix(const sm90_gemm_product *p)
{
    return sm90_gemm_batches(p) > 1 && p->first->b.batch_stride == 0;
}

static int32_t sf_aligned(const sm90_gemm_product *product)
{
    int32_t bytes = 16;
    while (bytes > 4 && !(factors_are_aligned(product, &product->first->b, bytes) &&
                          (!product->ups || factors_are_aligned(product, product->ups, bytes))))
        bytes /= 2;
    return bytes;
}

sm90_gemm_scheduler sm90_gemm_scheduler_of(const sm90_gemm_product *product, int tile)
{
    const nk_gemm_problem *p = product->first;
    const sm90_gemm_shape *t = &sm90_gemm_shapes[tile];
    const int64_t row_tiles = nk_ceil_div(p->n, sm90_gemm_features(product, t)),
                  token_tiles = token_tiles_of(product, t);
    return (sm90_gemm_scheduler){
        .n_tiles = (int32_t)row_tiles,
        .m_tiles = (int32_t)token_tiles,
        .tiles = (int32_t)(p->l * row_tiles * token_tiles),
        .k_steps = (int32_t)steps_of(p),
        .k_tiles_per_cta = (int32_t)nk_ceil_div(nk_ceil_div(steps_of(p), t->steps), t->cluster),
        .one_matrix = sm90_gemm_has_one_matrix(product),
        .mma_scale = p->a.dtype == NK_E2M1X2 ? 0x1p28f : 0x1p14f,
        .sf_alignment = sf_aligned(product),
    };
}
