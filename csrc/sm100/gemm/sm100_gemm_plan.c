/* Products on Blackwell: picks a tile, and which operand is its lanes, by cost; launches. */
#include "sm100_gemm_plan.h"

#include "sm100_gemm_costs.h"

typedef struct tile {
    int32_t ctas, columns, parts, pairs, stages[2], smem_bytes[2]; /* of one matrix of weights, and of two */
} tile;

static const tile tiles[SM100_GEMM_TILE_COUNT] = {
#define ROW(name, ctas, columns, parts, of_one, of_two, pairs)                                                       \
    [SM100_GEMM_##name] = {ctas,                                                                                     \
                           columns,                                                                                  \
                           parts,                                                                                    \
                           pairs,                                                                                    \
                           {SM100_GEMM_STAGES(ctas, columns, parts, 1), SM100_GEMM_STAGES(ctas, columns, parts, 2)}, \
                           {SM100_GEMM_SMEM(ctas, columns, parts, 1), SM100_GEMM_SMEM(ctas, columns, parts, 2)}},
    SM100_GEMM_TILES(ROW)
#undef ROW
};

static int32_t cluster_of(const tile *t) { return t->ctas * t->parts * t->pairs; }

static int32_t lanes_of(const tile *t) { return t->ctas * t->pairs * SM100_GEMM_CTA_M; }

#define NAME(name, ...) #name,
const nk_family sm100_gemm_family = {"sm100", "gemm", (const char *const[]){SM100_GEMM_TILES(NAME) NULL}, NULL};

#define NO_ROOM "tensor memory has no room for the sums of two matrices"
#define LARGEST_STRIDE ((int64_t)1 << 40) /* of a tensor map */

/* The stride of a dimension of extent 1 is unused. With batch_invariant it must be one for more, too: a row must not
 * run elsewhere, where sums have another order, because there is another one. */
static bool can_be_stride(int64_t bytes, int64_t count, int64_t least, bool batch_invariant)
{
    if (count <= 1 && !batch_invariant) return true;
    return bytes >= least && bytes < LARGEST_STRIDE && bytes % 16 == 0;
}

static bool is_tokens(const sm100_gemm_product *product, const nk_operand *o) { return o == &product->first->a; }

/* Of an operand. */
static int64_t batches_of(const sm100_gemm_product *product, const nk_operand *o)
{
    return product->has_experts && !is_tokens(product, o) ? product->experts.count : product->first->l;
}

static bool are_by_index(const sm100_gemm_product *product, const nk_operand *o)
{
    return is_tokens(product, o) && product->experts.rows.data;
}

/* Of a batch of an operand; result rows by index are of tokens that may be more or fewer. */
static int64_t rows_of(const sm100_gemm_product *product, const nk_operand *o)
{
    if (are_by_index(product, o)) return product->experts.rows.tokens;
    return is_tokens(product, o) ? product->first->m : product->first->n;
}

/* Whether a tensor map describes the codes. Of tokens by index it must describe them gathered, too: a call with them
 * has the same bits. */
static bool has_map(const sm100_gemm_product *product, const nk_operand *o, bool batch_invariant)
{
    const int64_t rows = rows_of(product, o);
    if (are_by_index(product, o) && product->first->k / 2 % 16 != 0) return false;
    return (uintptr_t)o->data % 16 == 0 && can_be_stride(o->row_stride, rows, 16, batch_invariant) &&
           can_be_stride(o->batch_stride, batches_of(product, o), 0, batch_invariant);
}

/* Whether scale factors are atoms that bulk copies can take as they are, without padding along K. */
static bool has_whole_atoms(const sm100_gemm_product *product, const nk_operand *o)
{
    const int64_t batch = batches_of(product, o) > 1 ? o->sf_batch_stride : 0;
    return o->sf_layout == NK_SF_BLOCKED && product->first->k % SM100_GEMM_MMA_K == 0 &&
           ((uint64_t)(uintptr_t)o->sf | (uint64_t)batch) % 16 == 0;
}

/* Blocked scale factors of tokens by index are one matrix: every token has its own. */
sm100_gemm_experts sm100_gemm_experts_of(const nk_grouped_gemm_problem *p)
{
    const int64_t row_bytes = nk_ceil_div(p->all.k, NK_SF_VEC * NK_SF_ATOM_COLS) * NK_SF_ATOM_BYTES;
    const bool any = p->all.a.sf_layout == NK_SF_LINEAR || p->rows.data || row_bytes == 0;
    return (sm100_gemm_experts){p->offsets, p->groups, any ? INT64_MAX : p->a_sf_bytes / row_bytes, p->rows};
}

const char *sm100_gemm_why_no_tile(const sm100_gemm_product *product, bool batch_invariant)
{
    const nk_gemm_problem *p = product->first;
    if (p->a.dtype != NK_E2M1X2) return "the tokens are not NVFP4";
    if (p->k == 0) return "K is 0";
    if (p->l > SM100_GEMM_LARGEST || p->m > SM100_GEMM_LARGEST || p->n > SM100_GEMM_LARGEST ||
        p->k > SM100_GEMM_LARGEST)
        return "L, M, N or K is larger than any tile of this family takes";
    if (product->has_experts && product->experts.count > SM100_GEMM_LARGEST) return "there are too many experts";
    if (product->has_experts && product->experts.atom_rows == 0) return "the tokens have no scale factors";
    if (rows_of(product, &p->a) > SM100_GEMM_LARGEST) return "there are too many tokens";
    if (!has_map(product, &p->a, batch_invariant)) return "no tensor map describes the tokens";
    if (!has_map(product, &p->b, batch_invariant) || (product->ups && !has_map(product, product->ups, batch_invariant)))
        return "no tensor map describes the weights";
    return NULL;
}

typedef sm100_gemm_candidate candidate;

static double larger(double x, double y) { return x > y ? x : y; }

/* Of a CTA: the rate of products, or that of the operands' rows out of shared memory. */
static double product_cycles(const tile *t)
{
    const double rows = SM100_GEMM_CTA_M + (double)t->columns / t->ctas;
    return larger(t->columns * SM100_GEMM_COLUMN_CYCLES, rows * SM100_GEMM_ROW_CYCLES);
}

/* Of a CTA's columns: what others load for it. Pairs share their codes, and all CTAs the scale factors. It counts for
 * nothing where one wave is enough: SMs are left over, and L2 has more to give the others. */
static double shared_bytes(const tile *t, double k, double waves)
{
    if (t->pairs == 1 || waves <= 1) return 0;
    const double codes = (double)t->columns / t->ctas * k / 2, factors = t->columns * k / NK_SF_VEC;
    return codes * (1 - 1.0 / t->pairs) + factors * (1 - 1.0 / cluster_of(t));
}

/* Products, the bytes of stages or stores, whichever takes longest, of the CTA with most tiles; the last tile's stores.
 */
double sm100_gemm_us(const sm100_gemm_product *product, int tile_index, double waves)
{
    const tile *t = &tiles[tile_index];
    const double matrices = product->ups ? 2 : 1, k = (double)product->first->k / t->parts;
    const double products = matrices * k / SM100_GEMM_MMA_K * product_cycles(t);
    const double codes = matrices * SM100_GEMM_CTA_M + (double)t->columns / t->ctas,
                 factors = matrices * SM100_GEMM_CTA_M + t->columns;
    const double arrive = codes * k / 2 + factors * k / NK_SF_VEC, bytes = arrive - shared_bytes(t, k, waves);
    const double tile_cycles =
        larger(products, larger(bytes / SM100_GEMM_BYTES_PER_CYCLE, arrive / SM100_GEMM_ARRIVING_BYTES_PER_CYCLE));
    const double stores = SM100_GEMM_TILE_CYCLES + matrices * t->columns * SM100_GEMM_STORE_COLUMN_CYCLES;
    const double inbox = SM100_GEMM_INBOX_BYTES(t->columns, t->parts, product->ups ? 2 : 1);
    const double sums = t->parts > 1 ? SM100_GEMM_PARTS_CYCLES + inbox / SM100_GEMM_BYTES_PER_CYCLE : 0;
    const double fill = SM100_GEMM_FILL_CYCLES + (t->ctas > 1 ? t->pairs * SM100_GEMM_PAIR_CYCLES : 0);
    return (fill + waves * larger(tile_cycles, stores + sums) + stores + sums) / SM100_GEMM_CYCLES_PER_US;
}

/* For experts as many as any offsets can need: each one with tokens may have a tile that is not full. */
static int64_t token_tiles_of(const sm100_gemm_product *product, int32_t columns)
{
    const int64_t m = product->first->m, experts = product->experts.count, busy = experts < m ? experts : m;
    return product->has_experts ? (m - busy) / columns + busy : nk_ceil_div(m, columns);
}

candidate sm100_gemm_candidate_of(const sm100_gemm_product *product, const cuda_gpu *gpu, int tile,
                                  bool tokens_are_mma_m)
{
    const nk_gemm_problem *p = product->first;
    const int32_t at_once = gpu->sms / cluster_of(&tiles[tile]);
    candidate c = {.tile = tile, .tokens_are_mma_m = tokens_are_mma_m, .at_once = at_once > 1 ? at_once : 1};
    c.mma_m_tiles = nk_ceil_div(tokens_are_mma_m ? p->m : p->n, lanes_of(&tiles[tile]));
    c.mma_n_tiles =
        tokens_are_mma_m ? nk_ceil_div(p->n, tiles[tile].columns) : token_tiles_of(product, tiles[tile].columns);
    c.tiles = (double)p->l * (double)c.mma_m_tiles * (double)c.mma_n_tiles;
    const double whole = c.tiles / c.at_once, waves = (double)(int64_t)whole;
    c.us = sm100_gemm_us(product, tile, waves + (waves < whole));
    return c;
}

/* Of a CTA. */
static int64_t smem_bytes(const sm100_gemm_product *product, int tile)
{
    const int64_t list = product->has_experts ? SM100_GEMM_EXPERT_BYTES(product->experts.count) : 0;
    return tiles[tile].smem_bytes[product->ups != NULL] + list;
}

const char *sm100_gemm_why_not_tile(const sm100_gemm_product *product,
                                    cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT], const cuda_gpu *gpu,
                                    const candidate *c)
{
    const tile *t = &tiles[c->tile];
    if (!kernels[c->tile])
        return t->parts > 1                                              ? "it divides K"
               : t->pairs > 1 && (product->has_experts || !product->ups) ? "its pairs share columns"
                                                                         : NO_ROOM;
    if (nk_ceil_div(product->first->k, SM100_GEMM_TILE_K) < t->parts) return "K has fewer steps than it has parts";
    if (smem_bytes(product, c->tile) > gpu->smem_per_cta) return "its CTAs do not fit into shared memory";
    return c->tiles * cluster_of(t) < SM100_GEMM_LARGEST ? NULL : "there are too many tiles";
}

/* The fastest of those that can serve the product. Weights on lanes come first, so that they win where both take as
 * long. Two matrices of weights, and experts', always are. With batch_invariant they are, too, and the tile is one: the
 * same instructions then make a row, whatever the others are.
 */
static candidate choose(const sm100_gemm_product *product, cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT],
                        const cuda_gpu *gpu, const nk_settings *settings, int forced, const char **why_not)
{
    const bool weights_alone = product->ups || product->has_experts || settings->batch_invariant;
    candidate best = {.tile = NK_TILE_ANY};
    for (int i = 0; i < (weights_alone ? 1 : 2) * SM100_GEMM_TILE_COUNT; i++) {
        const int tile = i % SM100_GEMM_TILE_COUNT;
        if (forced != NK_TILE_ANY && tile != forced) continue;
        const candidate c = sm100_gemm_candidate_of(product, gpu, tile, i >= SM100_GEMM_TILE_COUNT);
        const char *why = sm100_gemm_why_not_tile(product, kernels, gpu, &c);
        if (why) *why_not = why;
        if (!why && (best.tile == NK_TILE_ANY || c.us < best.us)) best = c;
        if (settings->batch_invariant) break;
    }
    return best;
}

/* By SM100_GEMM_OF_... */
static const nk_operand *operand_of(const sm100_gemm_product *product, const sm100_gemm_scheduler *work, int of)
{
    const nk_gemm_problem *p = product->first;
    if (of == SM100_GEMM_OPERAND_UP) return product->ups;
    return (of == SM100_GEMM_OPERAND_M) == work->tokens_are_mma_m ? &p->a : &p->b;
}

static int operands_of(const sm100_gemm_product *product) { return product->ups ? SM100_GEMM_OPERANDS : 2; }

sm100_gemm_scheduler sm100_gemm_scheduler_of(const sm100_gemm_product *product, const candidate *c)
{
    const nk_gemm_problem *p = product->first;
    sm100_gemm_scheduler work = {.tokens_are_mma_m = c->tokens_are_mma_m,
                                 .mma_m_tiles = (int32_t)c->mma_m_tiles,
                                 .mma_n_tiles = (int32_t)c->mma_n_tiles,
                                 .tiles = (int32_t)c->tiles,
                                 .k_steps = (int32_t)nk_ceil_div(p->k, SM100_GEMM_TILE_K),
                                 .up_row_in_atom = product->up_row_in_atom};
    for (int of = 0; of < operands_of(product); of++) {
        const nk_operand *o = operand_of(product, &work, of);
        work.sf_by_bulk_copy[of] = has_whole_atoms(product, o) && !are_by_index(product, o);
        if (of == SM100_GEMM_OPERAND_UP && work.up_row_in_atom) work.sf_by_bulk_copy[of] = false;
        work.one_matrix[of] = (product->has_experts && is_tokens(product, o)) || o->batch_stride == 0;
    }
    return work;
}

nk_status sm100_gemm_plan(const sm100_gemm_product *product, const nk_settings *settings,
                          cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT], nk_plan *plan, sm100_gemm_choice *choice)
{
    const int forced = nk_tile_forced(settings, &sm100_gemm_family);
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(product->first->device, &gpu));
    const char *why = sm100_gemm_why_no_tile(product, settings->batch_invariant), *why_not = NULL;
    const candidate c =
        why ? (candidate){.tile = NK_TILE_ANY} : choose(product, kernels, gpu, settings, forced, &why_not);
    if (!why && c.tile == NK_TILE_ANY) why = why_not;
    if (why && forced != NK_TILE_ANY) return NK_TILE_REFUSE(&sm100_gemm_family, forced, "%s", why);
    if (why) return nk_decline(plan, why);
    *choice = (sm100_gemm_choice){.kernel = kernels[c.tile],
                                  .tile = c.tile,
                                  .grid = sm100_gemm_ctas(&c, c.tiles),
                                  .overlap = settings->pdl != NK_PDL_OFF,
                                  .us = c.us,
                                  .work = sm100_gemm_scheduler_of(product, &c)};
    plan->why = c.tokens_are_mma_m ? "tokens are the lanes of tensor memory, weight rows its columns"
                                   : "weight rows are the lanes of tensor memory, tokens its columns";
    sm100_gemm_describe(product, settings, choice->kernel, &c, c.tiles, plan);
    return NK_OK;
}

int32_t sm100_gemm_ctas(const candidate *c, double count)
{
    const tile *t = &tiles[c->tile];
    return cluster_of(t) * (count < c->at_once || SM100_GEMM_IS_DYNAMIC(t->pairs) ? (int32_t)count : c->at_once);
}

void sm100_gemm_describe(const sm100_gemm_product *product, const nk_settings *settings, const cuda_kernel *kernel,
                         const candidate *c, double count, nk_plan *plan)
{
    const tile *t = &tiles[c->tile];
    const int32_t lanes = lanes_of(t);
    plan->kernel = kernel->name;
    plan->tile = sm100_gemm_family.tiles[c->tile];
    plan->tile_m = c->tokens_are_mma_m ? lanes : t->columns;
    plan->tile_n = c->tokens_are_mma_m ? t->columns : lanes;
    plan->tile_k = SM100_GEMM_TILE_K;
    plan->grid = sm100_gemm_ctas(c, count);
    plan->threads = SM100_GEMM_CTA_THREADS(t->pairs);
    plan->stages = t->stages[product->ups != NULL];
    plan->cluster = cluster_of(t);
    plan->split = t->parts;
    plan->batch_invariant = settings->batch_invariant;
}

/* The stride of a dimension of extent 1 is unused, but must be a multiple of 16. */
static uint64_t stride_of(int64_t stride, int64_t count) { return count > 1 ? (uint64_t)stride : 16; }

cuda_boxes sm100_gemm_boxes_of(const sm100_gemm_product *product, int tile_index, const sm100_gemm_scheduler *work,
                               int of)
{
    const nk_gemm_problem *p = product->first;
    const nk_operand *o = operand_of(product, work, of);
    const int64_t rows = rows_of(product, o), batches = work->one_matrix[of] ? 1 : batches_of(product, o);
    const bool alone = are_by_index(product, o); /* each row is a box */
    const tile *t = &tiles[tile_index];
    const int32_t of_cta = of == SM100_GEMM_OPERAND_N ? t->columns / t->ctas / t->pairs : SM100_GEMM_CTA_M;
    return (cuda_boxes){.name = is_tokens(product, o) ? "tokens" : "weights",
                        .at = o->data,
                        .dtype = NK_E2M1X2,
                        .rank = alone ? 2 : 3,
                        .dims = {(uint64_t)p->k / 2, (uint64_t)rows, (uint64_t)batches},
                        .strides = {stride_of(o->row_stride, rows), stride_of(o->batch_stride, batches)},
                        .box = {SM100_GEMM_CODE_BYTES, alone ? 1 : (uint32_t)of_cta, 1},
                        .swizzle = CUDA_SWIZZLE_128,
                        .l2 = CUDA_L2_256};
}

cuda_grid sm100_gemm_grid_of(const sm100_gemm_product *product, int tile, int32_t ctas, bool overlap)
{
    return (cuda_grid){.x = ctas,
                       .y = 1,
                       .z = 1,
                       .threads = SM100_GEMM_CTA_THREADS(tiles[tile].pairs),
                       .smem_bytes = (int32_t)smem_bytes(product, tile),
                       .cluster.x = cluster_of(&tiles[tile]),
                       .overlap = overlap};
}

nk_status sm100_gemm_run(const sm100_gemm_product *product, const sm100_gemm_choice *c, const nk_exec *exec)
{
    const nk_device device = product->first->device;
    const int operands = operands_of(product);
    sm100_gemm_scheduler work = c->work;
    cuda_tensor_map maps[SM100_GEMM_OPERANDS], *to[SM100_GEMM_OPERANDS];
    cuda_boxes boxes[SM100_GEMM_OPERANDS];
    sm100_gemm_experts experts = product->experts;
    void *args[SM100_GEMM_OPERANDS + 3]; /* and the problem, the work, the experts */
    for (int of = 0; of < operands; of++) {
        boxes[of] = sm100_gemm_boxes_of(product, c->tile, &work, of);
        args[of] = to[of] = &maps[of];
    }
    args[operands] = (void *)(uintptr_t)product->problem;
    args[operands + 1] = &work;
    if (product->has_experts) args[operands + 2] = &experts;
    NK_TRY(cuda_encode_maps(device, operands, boxes, to));
    const cuda_grid grid = sm100_gemm_grid_of(product, c->tile, c->grid, c->overlap);
    return cuda_launch(c->kernel, device, exec->stream, &grid, args);
}
