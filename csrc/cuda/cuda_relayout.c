/* to_blocked and from_blocked: choose a grid and launch. */
#include "cuda_quantize.h"

#include "relayout_config.h"

enum { NARROW, WIDE };

static cuda_kernel *relayout_kernel(const nk_relayout_problem *p, const cuda_relayout_kernels *kernels)
{
    uint64_t linear = (uint64_t)(uintptr_t)p->linear | (uint64_t)p->linear_row_stride | (uint64_t)p->cols;
    uint64_t blocked = (uint64_t)(uintptr_t)p->blocked | (uint64_t)p->blocked_batch_stride;
    linear |= (uint64_t)p->linear_batch_stride;
    return kernels->convert[p->to == NK_SF_BLOCKED][linear % 4 == 0 && blocked % 16 == 0 ? WIDE : NARROW];
}

typedef struct relayout_choice {
    cuda_kernel *kernel;
    int64_t rows, cols; /* of tiles */
    int64_t ctas;
} relayout_choice;

NK_CHOICE_FITS(relayout_choice);

nk_status cuda_plan_relayout(const nk_relayout_problem *p, const cuda_relayout_kernels *kernels,
                             const nk_settings *settings, nk_plan *plan, void *choice)
{
    (void)settings;
    relayout_choice *c = choice;
    c->kernel = relayout_kernel(p, kernels);
    c->rows = nk_ceil_div(p->rows, NK_SF_ATOM_ROWS);
    c->cols = nk_ceil_div(p->cols, NK_SF_ATOM_COLS * CUDA_RELAYOUT_ATOMS);
    c->ctas = p->l * c->rows * c->cols;
    plan->kernel = c->kernel->name;
    plan->why = "every scale byte is moved once, at memory speed";
    plan->tile_m = NK_SF_ATOM_ROWS;
    plan->tile_n = NK_SF_ATOM_COLS * CUDA_RELAYOUT_ATOMS;
    plan->grid = c->ctas;
    plan->threads = CUDA_RELAYOUT_THREADS;
    plan->batch_invariant = true;
    return NK_OK;
}

nk_status cuda_run_relayout(const nk_relayout_problem *p, const void *choice, const nk_exec *exec)
{
    relayout_choice c = *(const relayout_choice *)choice;
    cuda_grid grid = {.x = c.ctas, .threads = CUDA_RELAYOUT_THREADS};
    void *args[] = {(void *)(uintptr_t)p, &c.rows, &c.cols};
    return cuda_launch(c.kernel, p->device, exec->stream, &grid, args);
}
