/* Products with 16-bit tokens on Blackwell: picks a tile by cost; launches. */
#include "sm100_kind_f16.h"

#include "cuda/cuda_encode.h"
#include "sm100_kind_f16_config.h"
#include "sm100_kind_f16_costs.h"

/* Whether weights are decoded, and how many matrices of them there are, decide how large a stage is. */
typedef enum kind { GEMM, DUAL_GEMM, GROUPED_GEMM, GROUPED_DUAL_GEMM, GROUPED_HALVES, KINDS } kind;

typedef struct tile {
    int32_t ctas, columns, parts, stages[KINDS], smem_bytes[KINDS];
} tile;

static const tile tiles[SM100_KIND_F16_TILE_COUNT] = {
#define OF_KINDS(of, ...) \
    {of(1, __VA_ARGS__, 1), of(1, __VA_ARGS__, 2), of(1, __VA_ARGS__, 1), of(1, __VA_ARGS__, 2), of(0, __VA_ARGS__, 1)}
#define ROW(name, ctas, columns, parts, ...)                                                                \
    [SM100_KIND_F16_##name] = {ctas, columns, parts, OF_KINDS(SM100_KIND_F16_STAGES, ctas, columns, parts), \
                               OF_KINDS(SM100_KIND_F16_SMEM, ctas, columns, parts)},
    SM100_KIND_F16_TILES(ROW)
#undef ROW
#undef OF_KINDS
};

static int32_t cluster_of(const tile *t) { return t->ctas * t->parts; }
static int32_t lanes_of(const tile *t) { return t->ctas * SM100_GEMM_CTA_M; }

#define OF_GEMM(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_gemm_##name,
#define OF_DUAL(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_dual_gemm_##name,
#define OF_EXPERTS(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_grouped_gemm_##name,
#define OF_GATED(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_grouped_dual_gemm_##name,
#define OF_HALVES(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_grouped_gemm_16bit_##name,
static cuda_kernel *const kernels[KINDS][SM100_KIND_F16_TILE_COUNT] = {
    [GEMM] = {SM100_KIND_F16_TILES(OF_GEMM)},
    [DUAL_GEMM] = {SM100_KIND_F16_DUAL_TILES(OF_DUAL)},
    [GROUPED_GEMM] = {SM100_KIND_F16_GROUPED_TILES(OF_EXPERTS)},
    [GROUPED_DUAL_GEMM] = {SM100_KIND_F16_GROUPED_TILES(OF_GATED)},
    [GROUPED_HALVES] = {SM100_KIND_F16_GROUPED_TILES(OF_HALVES)},
};

#define OF_LIST(name, ...) [SM100_KIND_F16_##name] = &sm100_kind_f16_list_gemm_##name,
static cuda_kernel *const list_kernels[SM100_KIND_F16_TILE_COUNT] = {SM100_KIND_F16_LIST_TILES(OF_LIST)};

#define NAME(name, ...) #name,
const nk_family sm100_kind_f16_family = {"sm100", "kind_f16", (const char *const[]){SM100_KIND_F16_TILES(NAME) NULL},
                                         "halves"};

#define LARGEST_EXTENT (1 << 30)          /* tensor maps and kernels count in 32 bits */
#define LARGEST_STRIDE ((int64_t)1 << 40) /* of a tensor map */

static bool decodes(const sm100_gemm_product *product) { return product->first->b.dtype == NK_E2M1X2; }

static kind kind_of(const sm100_gemm_product *product)
{
    if (!product->has_experts) return product->ups ? DUAL_GEMM : GEMM;
    if (product->ups) return GROUPED_DUAL_GEMM;
    return decodes(product) ? GROUPED_GEMM : GROUPED_HALVES;
}

/* By SM100_GEMM_OF_.., its rows, and its matrices: experts have the tokens of all in one. */
static const nk_operand *operand_of(const sm100_gemm_product *product, int of)
{
    if (of == SM100_GEMM_OPERAND_UP) return product->ups;
    return of == SM100_GEMM_OPERAND_M ? &product->first->b : &product->first->a;
}

static int operands_of(const sm100_gemm_product *product) { return product->ups ? SM100_GEMM_OPERANDS : 2; }

static bool are_by_index(const sm100_gemm_product *product, int of)
{
    return of == SM100_GEMM_OPERAND_N && product->experts.rows.data;
}

/* Result rows by index are of tokens that may be more or fewer. */
static int64_t rows_of(const sm100_gemm_product *product, int of)
{
    if (are_by_index(product, of)) return product->experts.rows.tokens;
    return of == SM100_GEMM_OPERAND_N ? product->first->m : product->first->n;
}

static int64_t matrices_of(const sm100_gemm_product *product, int of)
{
    return product->has_experts && of != SM100_GEMM_OPERAND_N ? product->experts.count : product->first->l;
}

/* The stride of a dimension of extent 1 is unused. With batch_invariant it must do for more, too: a row must not run
 * elsewhere because there is another one. */
static bool is_stride(int64_t bytes, int64_t count, bool may_be_0, bool batch_invariant)
{
    const bool serves = (bytes > 0 || (may_be_0 && bytes == 0)) && bytes % 16 == 0 && bytes < LARGEST_STRIDE;
    return serves || (count <= 1 && !batch_invariant);
}

/* Of tokens by index a tensor map must describe them gathered, too: a call with them has the same bits. */
static bool has_map(const sm100_gemm_product *product, int of, bool batch_invariant)
{
    const nk_operand *o = operand_of(product, of);
    if (are_by_index(product, of) && product->first->k % 8 != 0) return false;
    const bool along_k = o->dtype == NK_E2M1X2 || product->first->k <= 1 || o->k_stride == 2;
    return along_k && (uintptr_t)o->data % 16 == 0 &&
           is_stride(o->row_stride, rows_of(product, of), false, batch_invariant) &&
           is_stride(o->batch_stride, matrices_of(product, of), true, batch_invariant);
}

/* Why no tile can serve the product, or NULL. */
static const char *why_no_tile(const sm100_gemm_product *product, bool batch_invariant)
{
    const nk_gemm_problem *p = product->first;
    if (p->k == 0) return "K is 0";
    if (p->l > LARGEST_EXTENT || p->m > LARGEST_EXTENT || p->n > LARGEST_EXTENT || p->k > LARGEST_EXTENT ||
        product->experts.count > LARGEST_EXTENT || rows_of(product, SM100_GEMM_OPERAND_N) > LARGEST_EXTENT)
        return "an extent is larger than 2^30";
    for (int of = 0; of < operands_of(product); of++)
        if (!has_map(product, of, batch_invariant))
            return of == SM100_GEMM_OPERAND_N ? "no tensor map describes the tokens"
                                              : "no tensor map describes the weights";
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The choice                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef sm100_gemm_candidate candidate;

static double larger(double x, double y) { return x > y ? x : y; }

/* For experts as many as any offsets can need: each one with tokens may have a tile that is not full. */
static int64_t column_tiles_of(const sm100_gemm_product *product, const tile *t)
{
    const int64_t m = product->first->m, experts = product->experts.count, busy = experts < m ? experts : m;
    return product->has_experts ? (m - busy) / t->columns + busy : nk_ceil_div(m, t->columns);
}

/* Products, decoding, the bytes of stages or stores, whichever takes longest, of the CTA with most tiles; the last
 * tile's stores. */
static double us_of(const sm100_gemm_product *product, int tile_index, double waves)
{
    const tile *t = &tiles[tile_index];
    const int matrices = product->ups ? 2 : 1;
    const double k = (double)product->first->k / t->parts, blocks = k / SM100_KIND_F16_SWIZZLE_K;
    const double weight_bytes = decodes(product) ? 0.5 + 1.0 / NK_SF_VEC : 2;
    const double tokens = product->first->m < t->columns ? (double)product->first->m : t->columns; /* that are there */
    const double bytes = (matrices * SM100_GEMM_CTA_M * weight_bytes + 2 * tokens / t->ctas) * k;
    const double rows = (double)t->columns / t->ctas + (decodes(product) ? 0 : SM100_GEMM_CTA_M),
                 of_rows = rows * SM100_KIND_F16_ROW_CYCLES;
    const double products = matrices * blocks * larger(t->columns * SM100_KIND_F16_COLUMN_CYCLES, of_rows);
    const double decoding = decodes(product) ? matrices * blocks * SM100_KIND_F16_DECODE_CYCLES : 0;
    const double inbox = SM100_GEMM_INBOX_BYTES(t->columns, t->parts, matrices) / SM100_GEMM_BYTES_PER_CYCLE;
    const double stores = SM100_GEMM_TILE_CYCLES + matrices * t->columns * SM100_GEMM_STORE_COLUMN_CYCLES +
                          (t->parts > 1 ? SM100_GEMM_PARTS_CYCLES + inbox : 0);
    const double loop = larger(larger(products, decoding), bytes / SM100_GEMM_BYTES_PER_CYCLE);
    const double fill = SM100_GEMM_FILL_CYCLES + (t->ctas > 1 ? SM100_GEMM_PAIR_CYCLES : 0);
    return (fill + waves * larger(loop, stores) + stores) / SM100_GEMM_CYCLES_PER_US;
}

/* Of a CTA. */
static int64_t smem_bytes(const sm100_gemm_product *product, const tile *t)
{
    const int64_t list = product->has_experts ? SM100_GEMM_EXPERT_BYTES(product->experts.count) : 0;
    return t->smem_bytes[kind_of(product)] + list;
}

static candidate candidate_of(const sm100_gemm_product *product, const cuda_gpu *gpu, int tile_index,
                              bool tokens_are_mma_m)
{
    const tile *t = &tiles[tile_index];
    candidate c = {.tile = tile_index,
                   .tokens_are_mma_m = tokens_are_mma_m, /* never here */
                   .mma_m_tiles = nk_ceil_div(product->first->n, lanes_of(t)),
                   .mma_n_tiles = column_tiles_of(product, t),
                   .at_once = gpu->sms < cluster_of(t) ? 1 : gpu->sms / cluster_of(t)};
    c.tiles = (double)product->first->l * (double)c.mma_m_tiles * (double)c.mma_n_tiles;
    const double whole = c.tiles / c.at_once, waves = (double)(int64_t)whole;
    c.us = us_of(product, tile_index, waves + (waves < whole));
    return c;
}

/* Why this tile cannot, where others may. */
static const char *why_not_tile(const sm100_gemm_product *product, cuda_kernel *const of_tiles[], const cuda_gpu *gpu,
                                const candidate *c)
{
    const tile *t = &tiles[c->tile];
    if (!of_tiles[c->tile]) return "the operator has no kernel of it";
    if (nk_ceil_div(product->first->k, SM100_KIND_F16_TILE_K) < t->parts) return "K has fewer steps than it has parts";
    if (smem_bytes(product, t) > gpu->smem_per_cta) return "its CTAs do not fit into shared memory";
    return c->tiles < LARGEST_EXTENT ? NULL : "there are too many tiles";
}

/* The fastest of those that can serve the product, or the forced one. */
static candidate choose(const sm100_gemm_product *product, const cuda_gpu *gpu, int forced, const char **why)
{
    candidate best = {.tile = NK_TILE_ANY};
    for (int i = 0; i < SM100_KIND_F16_TILE_COUNT; i++) {
        if (forced != NK_TILE_ANY && i != forced) continue;
        const candidate c = candidate_of(product, gpu, i, false);
        const char *why_not = why_not_tile(product, kernels[kind_of(product)], gpu, &c);
        if (why_not) *why = why_not;
        if (!why_not && (best.tile == NK_TILE_ANY || c.us < best.us)) best = c;
    }
    return best;
}

static sm100_gemm_scheduler work_of(const sm100_gemm_product *product, const candidate *c)
{
    sm100_gemm_scheduler work = {.mma_m_tiles = (int32_t)c->mma_m_tiles,
                                 .mma_n_tiles = (int32_t)c->mma_n_tiles,
                                 .tiles = (int32_t)c->tiles,
                                 .k_steps = (int32_t)nk_ceil_div(product->first->k, SM100_KIND_F16_TILE_K),
                                 .up_row_in_atom = product->up_row_in_atom};
    for (int of = 0; of < operands_of(product); of++)
        work.one_matrix[of] =
            (product->has_experts && of == SM100_GEMM_OPERAND_N) || operand_of(product, of)->batch_stride == 0;
    return work;
}

static int32_t ctas_of(const candidate *c, double count)
{
    return cluster_of(&tiles[c->tile]) * (count < c->at_once ? (int32_t)count : c->at_once);
}

static void describe(const sm100_gemm_product *product, const nk_settings *settings, const cuda_kernel *kernel,
                     const candidate *c, double count, nk_plan *plan)
{
    const tile *t = &tiles[c->tile];
    plan->kernel = kernel->name;
    plan->tile = sm100_kind_f16_family.tiles[c->tile];
    plan->tile_m = t->columns;
    plan->tile_n = lanes_of(t);
    plan->tile_k = SM100_KIND_F16_TILE_K;
    plan->grid = ctas_of(c, count);
    plan->threads = SM100_KIND_F16_THREADS(decodes(product));
    plan->stages = t->stages[kind_of(product)];
    plan->cluster = cluster_of(t);
    plan->split = t->parts;
    plan->batch_invariant = settings->batch_invariant;
}

/* With batch_invariant the tile is one: the same instructions then make a row, whatever the others are. */
nk_status sm100_kind_f16_plan(const sm100_gemm_product *product, const nk_settings *settings, nk_plan *plan,
                              sm100_gemm_choice *choice)
{
    const int forced = nk_tile_forced(settings, &sm100_kind_f16_family);
    const int only = forced == NK_TILE_ANY && settings->batch_invariant ? SM100_KIND_F16_n64 : forced;
    const char *why = why_no_tile(product, settings->batch_invariant);
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(product->first->device, &gpu));
    const candidate c = why ? (candidate){.tile = NK_TILE_ANY} : choose(product, gpu, only, &why);
    if (c.tile == NK_TILE_ANY && forced != NK_TILE_ANY)
        return NK_TILE_REFUSE(&sm100_kind_f16_family, forced, "%s", why);
    if (c.tile == NK_TILE_ANY) return nk_decline(plan, why);
    *choice = (sm100_gemm_choice){.kernel = kernels[kind_of(product)][c.tile],
                                  .tile = c.tile,
                                  .grid = ctas_of(&c, c.tiles),
                                  .overlap = settings->pdl != NK_PDL_OFF,
                                  .us = c.us,
                                  .work = work_of(product, &c)};
    plan->why = decodes(product) ? "weights are decoded to tensor memory" : "16-bit weights are multiplied as they are";
    describe(product, settings, choice->kernel, &c, c.tiles, plan);
    return NK_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The launch                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The stride of a dimension of extent 1 is unused, but must be a multiple of 16. */
static uint64_t stride_of(int64_t stride, int64_t count) { return count > 1 ? (uint64_t)stride : 16; }

static cuda_boxes boxes_of(const sm100_gemm_product *product, int tile_index, const sm100_gemm_scheduler *work, int of)
{
    const nk_operand *o = operand_of(product, of);
    const bool are_tokens = of == SM100_GEMM_OPERAND_N, are_codes = o->dtype == NK_E2M1X2;
    const bool alone = are_by_index(product, of); /* each row is a box */
    const tile *t = &tiles[tile_index];
    const int32_t of_cta = alone ? 1 : are_tokens ? t->columns / t->ctas : SM100_GEMM_CTA_M;
    const int64_t rows = rows_of(product, of), count = work->one_matrix[of] ? 1 : matrices_of(product, of);
    return (cuda_boxes){.name = are_tokens ? "tokens" : "weights",
                        .at = o->data,
                        .dtype = o->dtype,
                        .rank = alone ? 2 : 3,
                        .dims = {(uint64_t)product->first->k / (are_codes ? 2 : 1), (uint64_t)rows, (uint64_t)count},
                        .strides = {stride_of(o->row_stride, rows), stride_of(o->batch_stride, count)},
                        .box = {are_codes ? SM100_KIND_F16_CODE_BYTES : SM100_KIND_F16_SWIZZLE_K, (uint32_t)of_cta, 1},
                        .swizzle = are_codes ? CUDA_SWIZZLE_64 : CUDA_SWIZZLE_128,
                        .l2 = CUDA_L2_256};
}

static cuda_grid grid_of(const sm100_gemm_product *product, int tile_index, int32_t ctas, bool overlap)
{
    return (cuda_grid){.x = ctas,
                       .y = 1,
                       .z = 1,
                       .threads = SM100_KIND_F16_THREADS(decodes(product)),
                       .smem_bytes = (int32_t)smem_bytes(product, &tiles[tile_index]),
                       .cluster.x = cluster_of(&tiles[tile_index]),
                       .overlap = overlap};
}

nk_status sm100_kind_f16_run(const sm100_gemm_product *product, const sm100_gemm_choice *c, const nk_exec *exec)
{
    const nk_device device = product->first->device;
    const int operands = operands_of(product);
    sm100_gemm_scheduler work = c->work;
    sm100_gemm_experts experts = product->experts;
    cuda_boxes boxes[SM100_GEMM_OPERANDS];
    cuda_tensor_map maps[SM100_GEMM_OPERANDS], *to[SM100_GEMM_OPERANDS];
    void *args[SM100_GEMM_OPERANDS + 3]; /* maps, the problem, the work and, where there are any, experts */
    for (int of = 0; of < operands; of++) {
        boxes[of] = boxes_of(product, c->tile, &work, of);
        args[of] = to[of] = &maps[of];
    }
    NK_TRY(cuda_encode_maps(device, operands, boxes, to));
    args[operands] = (void *)(uintptr_t)product->problem;
    args[operands + 1] = &work;
    args[operands + 2] = &experts;
    const cuda_grid grid = grid_of(product, c->tile, c->grid, c->overlap);
    return cuda_launch(c->kernel, device, exec->stream, &grid, args);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Lists                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

const sm100_list_family sm100_kind_f16_list = {.family = &sm100_kind_f16_family,
                                               .kernels = list_kernels,
                                               .tiles = SM100_KIND_F16_TILE_COUNT,
                                               .invariant = SM100_KIND_F16_n64,
                                               .why_no_tile = why_no_tile,
                                               .why_not_tile = why_not_tile,
                                               .candidate_of = candidate_of,
                                               .us = us_of,
                                               .ctas = ctas_of,
                                               .describe = describe,
                                               .work_of = work_of,
                                               .boxes_of = boxes_of,
                                               .grid_of = grid_of};
