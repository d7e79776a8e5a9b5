#include "sm80/sm80_backend.h"

#include "sm80_relayout_config.h"

/* Rows: where to. Columns: whether every address is aligned. */
enum { NARROW, WIDE };
static cuda_kernel *const kernels[][2] = {
    {&sm80_relayout_to_linear_narrow, &sm80_relayout_to_linear},
    {&sm80_relayout_to_blocked_narrow, &sm80_relayout_to_blocked},
};

static cuda_kernel *kernel_of(const nk_relayout_problem *p)
{
    uint64_t linear = (uint64_t)(uintptr_t)p->linear | (uint64_t)p->linear_row_stride | (uint64_t)p->cols;
    uint64_t blocked = (uint64_t)(uintptr_t)p->blocked | (uint64_t)p->blocked_batch_stride;
    linear |= (uint64_t)p->linear_batch_stride;
    return kernels[p->to == NK_SF_BLOCKED][linear % 4 == 0 && blocked % 16 == 0 ? WIDE : NARROW];
}

static int64_t atom_rows(const nk_relayout_problem *p) { return nk_ceil_div(p->rows, NK_SF_ATOM_ROWS); }
static int64_t col_tiles(const nk_relayout_problem *p)
{
    return nk_ceil_div(p->cols, NK_SF_ATOM_COLS * SM80_RELAYOUT_ATOMS);
}

nk_status sm80_plan_relayout(const nk_relayout_problem *p, nk_plan *plan)
{
    plan->kernel = kernel_of(p)->name;
    plan->why = "every scale byte is moved once, at memory speed";
    plan->tile_m = NK_SF_ATOM_ROWS;
    plan->tile_n = NK_SF_ATOM_COLS * SM80_RELAYOUT_ATOMS;
    plan->grid = p->l * atom_rows(p) * col_tiles(p);
    plan->threads = SM80_RELAYOUT_THREADS;
    plan->batch_invariant = true;
    return NK_OK;
}

nk_status sm80_run_relayout(const nk_relayout_problem *p, const nk_exec *exec)
{
    int64_t rows = atom_rows(p), cols = col_tiles(p);
    cuda_grid grid = {.x = p->l * rows * cols, .y = 1, .z = 1, .threads = SM80_RELAYOUT_THREADS};
    void *args[] = {(void *)(uintptr_t)p, &rows, &cols};
    return cuda_launch(kernel_of(p), p->device, exec->stream, &grid, args);
}
