#include "sm80_gemm_plan.h"

extern cuda_image cuda_image_sm80_gemm;

#define OUTPUTS_PER_WARP 32
#define KERNEL(text) {.name = "sm80_gemm_" text, .image = &cuda_image_sm80_gemm}
#define ROW(name, tokens, warps, stages, ctas) \
    {KERNEL(#name "_codes"), KERNEL(#name "_halves"), KERNEL(#name "_bfloats"), KERNEL(#name "_reduce")},
static cuda_kernel kernels[SM80_GEMM_TILE_COUNT][4] = {SM80_GEMM_TILES(ROW)};
#define REDUCE 3

static sm80_product product_of(const nk_gemm_problem *p)
{
    return (sm80_product){p->l, p->m, p->n, p->k, sm80_gemm_kind(&p->a, &p->b), OUTPUTS_PER_WARP};
}

/* The gemv's order of summation is another one. */
static bool is_gemv(const nk_gemm_problem *p) { return p->m == 1 && !sm80_batch_invariant(); }

nk_status sm80_plan_gemm(const nk_gemm_problem *p, nk_plan *plan)
{
    if (is_gemv(p)) return sm80_plan_gemv(p, plan);
    sm80_product product = product_of(p);
    NK_TRY(sm80_gemm_plan(p->device, &product, plan));
    plan->kernel = kernels[sm80_gemm_tile_of(plan->config) - sm80_gemm_tiles][product.kind].name;
    return NK_OK;
}

nk_status sm80_run_gemm(const nk_gemm_problem *p, const nk_exec *exec)
{
    if (is_gemv(p)) return sm80_run_gemv(p, exec);
    sm80_product product = product_of(p);
    sm80_gemm_choice choice;
    sm80_gemm_params params;
    NK_TRY(sm80_gemm_resume(p->device, &product, exec, &choice, &params));
    int32_t threads = 32 * sm80_gemm_tiles[choice.tile].warps;
    cuda_grid grid = {choice.grid, 1, 1, threads, choice.smem_bytes};
    void *args[] = {(void *)(uintptr_t)p, &params};
    NK_TRY(cuda_launch(&kernels[choice.tile][product.kind], p->device, exec->stream, &grid, args));
    if (choice.reduce_grid == 0) return NK_OK;
    cuda_grid sum = {choice.reduce_grid, 1, 1, threads, 0};
    return cuda_launch(&kernels[choice.tile][REDUCE], p->device, exec->stream, &sum, args);
}
