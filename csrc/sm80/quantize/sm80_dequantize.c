#include "sm80/sm80_backend.h"

#include "sm80_quantize_tiles.h"

static cuda_kernel *kernel_of(const nk_dequantize_problem *p)
{
    return p->out.dtype == NK_F16    ? &sm80_dequantize_halves
           : p->out.dtype == NK_BF16 ? &sm80_dequantize_bfloats
                                     : &sm80_dequantize_floats;
}

static int64_t out_size(const nk_dequantize_problem *p) { return p->out.dtype == NK_F32 ? 4 : 2; }

static nk_status tiles_of(const nk_dequantize_problem *p, sm80_tiles *t)
{
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    bool rows_are_neighbours = p->out.col_stride != out_size(p);
    *t = (sm80_tiles){.turns = 1};
    if (p->l > 0 && p->rows > 0 && p->k > 0) {
        *t = sm80_tiles_of(p->l, p->rows, p->k * out_size(p) / 16, (int64_t)gpu->sms * 2048, SM80_TILE_MAX_TURNS,
                           rows_are_neighbours ? 0 : SM80_TILE_BITS);
    }
    return NK_OK;
}

nk_status sm80_plan_dequantize(const nk_dequantize_problem *p, nk_plan *plan)
{
    sm80_tiles t;
    NK_TRY(tiles_of(p, &t));
    plan->kernel = kernel_of(p)->name;
    plan->why = "every code is read once, at memory speed";
    plan->tile_m = (int64_t)(SM80_TILE_THREADS >> t.column_bits) * t.turns;
    plan->tile_k = ((int64_t)16 << t.column_bits) / out_size(p);
    plan->grid = t.count;
    plan->threads = SM80_TILE_THREADS;
    plan->batch_invariant = true;
    return NK_OK;
}

nk_status sm80_run_dequantize(const nk_dequantize_problem *p, const nk_exec *exec)
{
    sm80_tiles t;
    NK_TRY(tiles_of(p, &t));
    uint64_t codes = (uint64_t)(uintptr_t)p->q.data | (uint64_t)p->q.row_stride | (uint64_t)p->q.batch_stride;
    uint64_t out = (uint64_t)(uintptr_t)p->out.data | (uint64_t)p->out.row_stride | (uint64_t)p->out.batch_stride;
    int wide_codes = codes % 4 == 0, wide_out = out % 16 == 0 && p->out.col_stride == out_size(p);
    cuda_grid grid = {.x = t.count, .y = 1, .z = 1, .threads = SM80_TILE_THREADS};
    void *args[] = {(void *)(uintptr_t)p, &t, &wide_codes, &wide_out};
    return cuda_launch(kernel_of(p), p->device, exec->stream, &grid, args);
}
