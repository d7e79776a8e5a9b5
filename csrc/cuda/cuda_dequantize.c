/* dequantize: chooses a kernel and its tiles, and launches it. */
#include "cuda_quantize.h"

#include "quantize_tiles.h"

static int64_t out_size(const nk_dequantize_problem *p) { return p->out.dtype == NK_F32 ? 4 : 2; }

typedef struct dequantize_choice {
    cuda_kernel *kernel;
    cuda_tiles tiles;
    int wide_codes, wide_out; /* every address is aligned */
} dequantize_choice;

NK_CHOICE_FITS(dequantize_choice);

static nk_status choose_tiles(const nk_dequantize_problem *p, const cuda_dequantize_kernels *kernels,
                              dequantize_choice *c)
{
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    bool rows_are_neighbours = p->out.col_stride != out_size(p);
    uint64_t codes = (uint64_t)(uintptr_t)p->q.data | (uint64_t)p->q.row_stride | (uint64_t)p->q.batch_stride;
    uint64_t out = (uint64_t)(uintptr_t)p->out.data | (uint64_t)p->out.row_stride | (uint64_t)p->out.batch_stride;
    *c = (dequantize_choice){
        .kernel = kernels->decode[p->out.dtype == NK_F16    ? 0
                                  : p->out.dtype == NK_BF16 ? 1
                                                            : 2],
        .tiles.turns = 1,
        .wide_codes = codes % 4 == 0,
        .wide_out = out % 16 == 0 && !rows_are_neighbours,
    };
    if (p->l > 0 && p->rows > 0 && p->k > 0) {
        c->tiles = cuda_tiles_of(p->l, p->rows, p->k * out_size(p) / 16, (int64_t)gpu->sms * 2048, CUDA_TILE_MAX_TURNS,
                                 rows_are_neighbours ? 0 : CUDA_TILE_BITS);
    }
    return NK_OK;
}

nk_status cuda_plan_dequantize(const nk_dequantize_problem *p, const cuda_dequantize_kernels *kernels,
                               const nk_settings *settings, nk_plan *plan, void *choice)
{
    (void)settings;
    dequantize_choice *c = choice;
    NK_TRY(choose_tiles(p, kernels, c));
    const cuda_tiles *t = &c->tiles;
    plan->kernel = c->kernel->name;
    plan->why = "every code is read once, at memory speed";
    plan->tile_m = (int64_t)(CUDA_TILE_THREADS >> t->column_bits) * t->turns;
    plan->tile_k = ((int64_t)16 << t->column_bits) / out_size(p);
    plan->grid = t->count;
    plan->threads = CUDA_TILE_THREADS;
    plan->batch_invariant = true;
    return NK_OK;
}

nk_status cuda_run_dequantize(const nk_dequantize_problem *p, const void *choice, const nk_exec *exec)
{
    dequantize_choice c = *(const dequantize_choice *)choice;
    cuda_grid grid = {.x = c.tiles.count, .threads = CUDA_TILE_THREADS};
    void *args[] = {(void *)(uintptr_t)p, &c.tiles, &c.wide_codes, &c.wide_out};
    return cuda_launch(c.kernel, p->device, exec->stream, &grid, args);
}
