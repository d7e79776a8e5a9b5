/* gemm on Blackwell: picks a tile, and which operand is its lanes, by cost; launches. */
#include "cuda/cuda_encode.h"
#include "sm100/sm100_backend.h"

#include "sm100_gemm_config.h"
#include "sm100_gemm_costs.h"

typedef struct tile {
    int32_t columns, stages, smem_bytes;
    cuda_kernel *kernel;
} tile;

static const tile tiles[SM100_GEMM_TILE_COUNT] = {
#define ROW(name, columns, stages, accumulators) \
    [SM100_GEMM_##name] = {columns, stages, SM100_GEMM_SMEM(columns, stages), &sm100_gemm_##name},
    SM100_GEMM_TILES(ROW)
#undef ROW
};

#define NAME(name, ...) #name,
const nk_family sm100_gemm_family = {"sm100", "gemm", (const char *const[]){SM100_GEMM_TILES(NAME) NULL}};

/* A tile, and which operand is its lanes. */
typedef struct candidate {
    int tile;
    bool tokens_on_lanes;
    double us;
} candidate;

typedef struct gemm_choice {
    int32_t tile, grid;
    bool overlap;
    sm100_gemm_work work;
} gemm_choice;

NK_CHOICE_FITS(gemm_choice);

#define LARGEST_EXTENT (1 << 30)          /* tensor maps and kernels count in 32 bits */
#define LARGEST_STRIDE ((int64_t)1 << 40) /* of a tensor map */

static bool can_be_stride(int64_t bytes, int64_t count, int64_t least)
{
    return count <= 1 || (bytes >= least && bytes < LARGEST_STRIDE && bytes % 16 == 0);
}

/* Whether a tensor map describes the codes. */
static bool has_map(const nk_gemm_problem *p, const nk_operand *o, int64_t rows)
{
    return (uintptr_t)o->data % 16 == 0 && can_be_stride(o->row_stride, rows, 16) &&
           can_be_stride(o->batch_stride, p->l, 0);
}

/* Whether scale factors are atoms that bulk copies can take as they are, without padding along K. */
static bool has_whole_atoms(const nk_gemm_problem *p, const nk_operand *o)
{
    const uint64_t bits = (uint64_t)(uintptr_t)o->sf | (p->l > 1 ? (uint64_t)o->sf_batch_stride : 0);
    return o->sf_layout == NK_SF_BLOCKED && p->k % SM100_GEMM_BLOCK == 0 && bits % 16 == 0;
}

/* Why no tile can serve the problem, or NULL. */
static const char *why_not(const nk_gemm_problem *p)
{
    if (p->a.dtype != NK_E2M1X2) return "the tokens are not NVFP4";
    if (p->k == 0) return "K is 0";
    if (p->l > LARGEST_EXTENT || p->m > LARGEST_EXTENT || p->n > LARGEST_EXTENT || p->k > LARGEST_EXTENT)
        return "L, M, N or K is larger than any tile of this family takes";
    if (!has_map(p, &p->a, p->m)) return "no tensor map describes the tokens";
    if (!has_map(p, &p->b, p->n)) return "no tensor map describes the weights";
    return NULL;
}

static int64_t tiles_of(const nk_gemm_problem *p, const candidate *c, int64_t *lane_tiles, int64_t *column_tiles)
{
    *lane_tiles = nk_ceil_div(c->tokens_on_lanes ? p->m : p->n, SM100_GEMM_LANES);
    *column_tiles = nk_ceil_div(c->tokens_on_lanes ? p->n : p->m, tiles[c->tile].columns);
    const double all = (double)p->l * (double)*lane_tiles * (double)*column_tiles;
    return all < LARGEST_EXTENT ? p->l * *lane_tiles * *column_tiles : LARGEST_EXTENT;
}

static double larger(double x, double y) { return x > y ? x : y; }

/* Products, or the bytes of stages, whichever takes longer, of the CTA with most tiles; the last tile's stores. */
static double us_of(const nk_gemm_problem *p, const cuda_gpu *gpu, const candidate *c)
{
    const tile *t = &tiles[c->tile];
    int64_t lane_tiles, column_tiles;
    const int64_t waves = nk_ceil_div(tiles_of(p, c, &lane_tiles, &column_tiles), gpu->sms);
    const double blocks = (double)nk_ceil_div(p->k, SM100_GEMM_BLOCK);
    const double products = blocks * t->columns * SM100_GEMM_COLUMN_CYCLES;
    const double bytes = (double)(SM100_GEMM_LANES + t->columns) * (double)p->k * 9 / 16;
    const double tile_cycles = larger(products, bytes / SM100_GEMM_BYTES_PER_CYCLE);
    const double stores = SM100_GEMM_TILE_CYCLES + t->columns * SM100_GEMM_STORE_COLUMN_CYCLES;
    return (SM100_GEMM_FILL_CYCLES + (double)waves * tile_cycles + stores) / SM100_GEMM_CYCLES_PER_US;
}

/* Weights on lanes come first, so that they win where both take as long. With batch_invariant they always are, and the
 * tile is one: the same instructions then make a row, whatever the other rows are. */
static candidate choose(const nk_gemm_problem *p, const cuda_gpu *gpu, const nk_settings *settings)
{
    const int forced = nk_tile_forced(settings, &sm100_gemm_family);
    candidate best = {.tile = NK_TILE_ANY};
    for (int i = 0; i < 2 * SM100_GEMM_TILE_COUNT; i++) {
        candidate c = {.tile = i % SM100_GEMM_TILE_COUNT, .tokens_on_lanes = i >= SM100_GEMM_TILE_COUNT};
        if (forced != NK_TILE_ANY && c.tile != forced) continue;
        c.us = us_of(p, gpu, &c);
        if (best.tile == NK_TILE_ANY || c.us < best.us) best = c;
        if (settings->batch_invariant) return best;
    }
    return best;
}

static sm100_gemm_work work_of(const nk_gemm_problem *p, const candidate *c)
{
    const nk_operand *operands[] = {c->tokens_on_lanes ? &p->a : &p->b, c->tokens_on_lanes ? &p->b : &p->a};
    int64_t lane_tiles, column_tiles;
    sm100_gemm_work work = {.tokens_on_lanes = c->tokens_on_lanes,
                            .tiles = (int32_t)tiles_of(p, c, &lane_tiles, &column_tiles),
                            .steps = (int32_t)nk_ceil_div(p->k, SM100_GEMM_STEP)};
    work.lane_tiles = (int32_t)lane_tiles;
    work.column_tiles = (int32_t)column_tiles;
    for (int i = 0; i < 2; i++) {
        work.copied[i] = has_whole_atoms(p, operands[i]);
        work.one_matrix[i] = p->l > 1 && operands[i]->batch_stride == 0;
    }
    return work;
}

nk_status sm100_plan_gemm(const nk_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    gemm_choice *g = choice;
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const int forced = nk_tile_forced(settings, &sm100_gemm_family);
    const candidate c = choose(p, gpu, settings);
    const tile *t = &tiles[c.tile];
    int64_t lane_tiles, column_tiles;
    const char *why = why_not(p);
    if (!why && t->smem_bytes > gpu->smem_per_cta) why = "its CTAs do not fit into shared memory";
    if (!why && tiles_of(p, &c, &lane_tiles, &column_tiles) >= LARGEST_EXTENT) why = "there are too many tiles";
    if (why && forced != NK_TILE_ANY) return NK_TILE_REFUSE(&sm100_gemm_family, forced, "%s", why);
    if (why) return nk_decline(plan, why);
    if (p->m == 1 && forced == NK_TILE_ANY) return nk_decline(plan, "one token is a gemv");
    *g = (gemm_choice){.tile = c.tile, .overlap = settings->pdl != NK_PDL_OFF, .work = work_of(p, &c)};
    g->grid = g->work.tiles < gpu->sms ? g->work.tiles : gpu->sms;
    plan->kernel = t->kernel->name;
    plan->why = c.tokens_on_lanes
                    ? "the fastest by cost: tokens are the lanes of tensor memory, weight rows its columns"
                    : "the fastest by cost: weight rows are the lanes of tensor memory, tokens its columns";
    plan->tile = sm100_gemm_family.tiles[c.tile];
    plan->tile_m = c.tokens_on_lanes ? SM100_GEMM_LANES : t->columns;
    plan->tile_n = c.tokens_on_lanes ? t->columns : SM100_GEMM_LANES;
    plan->tile_k = SM100_GEMM_STEP;
    plan->grid = g->grid;
    plan->threads = SM100_GEMM_THREADS;
    plan->stages = t->stages;
    plan->batch_invariant = settings->batch_invariant;
    return NK_OK;
}

/* The stride of a dimension of extent 1 is unused, but must be a multiple of 16. */
static uint64_t stride_of(int64_t stride, int64_t count) { return count > 1 ? (uint64_t)stride : 16; }

static cuda_boxes boxes_of(const nk_gemm_problem *p, const nk_operand *o, int32_t rows_of_tile)
{
    const int64_t rows = o == &p->a ? p->m : p->n, batches = o->batch_stride == 0 ? 1 : p->l;
    return (cuda_boxes){.name = o == &p->a ? "tokens" : "weights",
                        .at = o->data,
                        .dtype = NK_E2M1X2,
                        .rank = 3,
                        .dims = {(uint64_t)p->k / 2, (uint64_t)rows, (uint64_t)batches},
                        .strides = {stride_of(o->row_stride, rows), stride_of(o->batch_stride, batches)},
                        .box = {SM100_GEMM_CODE_BYTES, (uint32_t)rows_of_tile, 1},
                        .swizzle = CUDA_SWIZZLE_128,
                        .l2 = CUDA_L2_256};
}

nk_status sm100_run_gemm(const nk_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const gemm_choice *g = choice;
    const tile *t = &tiles[g->tile];
    sm100_gemm_work work = g->work;
    const nk_operand *lanes = work.tokens_on_lanes ? &p->a : &p->b, *columns = work.tokens_on_lanes ? &p->b : &p->a;
    const cuda_boxes boxes[] = {boxes_of(p, lanes, SM100_GEMM_LANES), boxes_of(p, columns, t->columns)};
    cuda_tensor_map maps[2];
    NK_TRY(cuda_encode_maps(p->device, 2, boxes, (cuda_tensor_map *const[]){&maps[0], &maps[1]}));
    const cuda_grid grid = {.x = g->grid,
                            .y = 1,
                            .z = 1,
                            .threads = SM100_GEMM_THREADS,
                            .smem_bytes = t->smem_bytes,
                            .overlap = g->overlap};
    return cuda_launch(t->kernel, p->device, exec->stream, &grid,
                       (void *[]){&maps[0], &maps[1], (void *)(uintptr_t)p, &work});
}
