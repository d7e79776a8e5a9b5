#include "sm80_gemm_plan.h"

extern cuda_image cuda_image_sm80_dual_gemm;

#define OUTPUTS_PER_WARP 16 /* of 32 weight rows: half are gates */
#define KERNEL(text) {.name = "sm80_dual_gemm_" text, .image = &cuda_image_sm80_dual_gemm}
#define ROW(name, tokens, warps, stages, ctas) \
    {KERNEL(#name "_codes"), KERNEL(#name "_halves"), KERNEL(#name "_bfloats"), KERNEL(#name "_reduce")},
static cuda_kernel kernels[SM80_GEMM_TILE_COUNT][4] = {SM80_GEMM_TILES(ROW)};
#define REDUCE 3

static sm80_product product_of(const nk_dual_gemm_problem *p)
{
    return (sm80_product){p->l, p->m, p->n, p->k, sm80_gemm_kind(&p->a, &p->b1), OUTPUTS_PER_WARP};
}

nk_status sm80_plan_dual_gemm(const nk_dual_gemm_problem *p, nk_plan *plan)
{
    sm80_product product = product_of(p);
    NK_TRY(sm80_gemm_plan(p->device, &product, plan));
    plan->kernel = kernels[sm80_gemm_tile_of(plan->config) - sm80_gemm_tiles][product.kind].name;
    return NK_OK;
}

nk_status sm80_run_dual_gemm(const nk_dual_gemm_problem *p, const nk_exec *exec)
{
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
