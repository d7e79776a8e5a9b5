/* quantize: chooses kernels and their tiles, and launches them. */
#include "cuda_quantize.h"

#include "quantize_params.h"

#define COLUMN_BITS 5 /* at most a warp of threads along a row */
#define AMAX_CTAS_PER_SM 8

enum { NARROW, WIDE };

static int64_t element_size(const nk_quantize_problem *p) { return p->x_dtype == NK_F32 ? 4 : 2; }

static uint64_t address_bits(const uint8_t *data, int64_t row_stride, int64_t batch_stride)
{
    return (uint64_t)(uintptr_t)data | (uint64_t)row_stride | (uint64_t)batch_stride;
}

static cuda_kernel *quantize_kernel(cuda_kernel *const of[3][2], const nk_quantize_problem *p)
{
    uint64_t in = address_bits(p->x, p->x_row_stride, p->x_batch_stride);
    if (p->up) in |= address_bits(p->up, p->up_row_stride, p->up_batch_stride);
    bool wide = in % 16 == 0 && address_bits(p->codes, p->codes_row_stride, p->codes_batch_stride) % 8 == 0;
    int dtype = p->x_dtype == NK_F16 ? 0 : p->x_dtype == NK_BF16 ? 1 : 2;
    return of[dtype][wide ? WIDE : NARROW];
}

static bool same_strides(const nk_quantize_problem *p)
{
    return p->x_row_stride == p->up_row_stride && p->x_batch_stride == p->up_batch_stride;
}

/* Rows without a gap between them become one row. Pieces are smaller where there would be too few for all SMs. */
static cuda_amax_rows amax_rows(const nk_quantize_problem *p, int64_t sms)
{
    cuda_amax_rows r = {.l = p->l, .rows = p->rows, .bytes = p->k * element_size(p), .vectors = CUDA_AMAX_VECTORS};
    r.row_stride = p->x_row_stride;
    r.batch_stride = p->x_batch_stride;
    r.up_row_stride = p->up_row_stride;
    r.up_batch_stride = p->up_batch_stride;
    bool alike = !p->up || same_strides(p);
    if (p->up) r.vectors /= 2;
    if ((r.row_stride == r.bytes && alike) || r.rows == 1) {
        r.bytes *= r.rows;
        r.rows = 1;
    }
    if (r.rows == 1 && ((r.batch_stride == r.bytes && alike) || r.l == 1)) {
        r.bytes *= r.l;
        r.l = 1;
    }
    while (r.vectors > 1 && r.l * r.rows * nk_ceil_div(r.bytes, cuda_amax_piece(r.vectors)) < sms)
        r.vectors /= 2;
    r.piece_bytes = cuda_amax_piece(r.vectors);
    r.pieces = cuda_divisor_of(nk_ceil_div(r.bytes, r.piece_bytes));
    r.all_rows = r.l * r.rows;
    return r;
}

typedef struct quantize_choice {
    cuda_kernel *kernel, *amax_kernel, *experts_kernel;
    cuda_quantize_params params; /* without the workspace's addresses */
} quantize_choice;

NK_CHOICE_FITS(quantize_choice);

static nk_status quantize_params(const nk_quantize_problem *p, cuda_quantize_params *q)
{
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    bool blocked = p->layout == NK_SF_BLOCKED;
    int64_t cols = p->k / NK_SF_VEC, padded = nk_sf_padded_cols(cols), room = (int64_t)gpu->sms * 2048;
    *q = (cuda_quantize_params){
        .cols = cols,
        .scale_cols = blocked ? padded : cols,
        .col_atoms = padded / NK_SF_ATOM_COLS,
        .positions = blocked ? p->sf_padded_rows : p->rows,
        .tiles.turns = 1,
    };
    if (p->offsets) {
        q->atoms = p->sf_padded_rows / NK_SF_ATOM_ROWS;
        q->positions += p->rows; /* rows outside every expert come last */
    }
    if (p->per_token) {
        q->tile_rows = 1;
        q->tiles.count = p->l * q->positions;
        if (q->tiles.count > 0 && q->tiles.count <= INT32_MAX) /* a larger grid is refused */
            q->tiles.row_tiles = cuda_divisor_of(q->positions);
        return NK_OK;
    }
    if (cols > 0 && p->l > 0 && q->positions > 0)
        q->tiles = cuda_tiles_of(p->l, q->positions, q->scale_cols, room, NK_SF_ATOM_ROWS, COLUMN_BITS);
    q->tile_rows = (CUDA_TILE_THREADS >> q->tiles.column_bits) * q->tiles.turns;
    if (p->amax_out && p->l > 0 && p->rows > 0 && p->k > 0) {
        q->amax_rows = amax_rows(p, gpu->sms);
        int64_t in_row = q->amax_rows.pieces.value, pieces = q->amax_rows.all_rows * in_row;
        int64_t most = (int64_t)AMAX_CTAS_PER_SM * gpu->sms;
        q->maxima_count = (int32_t)(pieces < most ? pieces : most);
        q->amax_rows.step_rows = q->maxima_count / in_row;
        q->amax_rows.step_pieces = q->maxima_count % in_row;
    }
    return NK_OK;
}

static int64_t atoms_bytes(const cuda_quantize_params *q)
{
    return nk_ceil_div(q->atoms * (int64_t)sizeof(cuda_atom_rows), 256) * 256;
}

nk_status cuda_plan_quantize(const nk_quantize_problem *p, const cuda_quantize_kernels *kernels,
                             const nk_settings *settings, nk_plan *plan, void *choice)
{
    (void)settings;
    quantize_choice *c = choice;
    const cuda_quantize_params *q = &c->params;
    NK_TRY(quantize_params(p, &c->params));
    const int gated = p->up ? 1 : 0;
    const int formula = p->recipe == NK_RECIPE_FOUR_SIX ? 2 : gated;
    c->kernel = quantize_kernel((p->per_token ? kernels->token : kernels->encode)[formula], p);
    c->amax_kernel = q->maxima_count > 0 ? quantize_kernel(kernels->amax[gated], p) : NULL;
    c->experts_kernel = kernels->experts;
    plan->kernel = c->kernel->name;
    plan->why = p->per_token  ? "a CTA for each row, which finds the row's largest value first"
                : p->amax_out ? "x is read twice, first for its largest value"
                              : "x is read once, at memory speed";
    plan->tile_m = q->tile_rows;
    plan->tile_k = p->per_token ? p->k : (int64_t)NK_SF_VEC << q->tiles.column_bits;
    plan->grid = q->tiles.count;
    plan->threads = CUDA_TILE_THREADS;
    plan->workspace_bytes = atoms_bytes(q) + q->maxima_count * (int64_t)sizeof(uint32_t);
    plan->batch_invariant = true; /* blocks have nothing in common but the maximum */
    return NK_OK;
}

nk_status cuda_run_quantize(const nk_quantize_problem *p, const void *choice, const nk_exec *exec)
{
    const quantize_choice *c = choice;
    cuda_quantize_params q = c->params;
    int64_t ctas = q.tiles.count;
    if (ctas == 0 && p->amax_out && !p->per_token) ctas = 1; /* writes the global scale */
    if (ctas == 0) return NK_OK;
    void *args[] = {(void *)(uintptr_t)p, &q};
    if (q.atoms > 0) {
        q.experts = exec->workspace;
        cuda_grid grid = {.x = 1, .threads = CUDA_EXPERT_THREADS};
        NK_TRY(cuda_launch(c->experts_kernel, p->device, exec->stream, &grid, args));
    }
    if (c->amax_kernel) {
        q.maxima = (uint32_t *)((uint8_t *)exec->workspace + atoms_bytes(&q));
        cuda_grid grid = {.x = q.maxima_count, .threads = CUDA_AMAX_THREADS};
        NK_TRY(cuda_launch(c->amax_kernel, p->device, exec->stream, &grid, args));
    }
    cuda_grid grid = {.x = ctas, .threads = CUDA_TILE_THREADS};
    return cuda_launch(c->kernel, p->device, exec->stream, &grid, args);
}
