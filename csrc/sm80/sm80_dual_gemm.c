#include "sm80_gemm_plan.h"

extern cuda_image cuda_image_sm80_dual_gemm;

#define OUTPUTS_PER_WARP 16 /* of 32 weight rows: half are gates */
#define KERNEL(text) {.name = "sm80_dual_gemm_" text, .image = &cuda_image_sm80_dual_gemm}
#define ROW(name, tokens, warps, stages, ctas) \
    {KERNEL(#name "_codes"), KERNEL(#name "_halves"), KERNEL(#name "_bfloats"), KERNEL(#name "_reduce")},
static cuda_kernel kernels[SM80_GEMM_TILE_COUNT][4] = {SM80_GEMM_TILES(ROW)};
#define REDUCE 3

static nk_status choose(const nk_dual_gemm_problem *p, int *kind, sm80_gemm_choice *choice, sm80_gemm_params *params)
{
    *kind = sm80_gemm_kind(&p->a, &p->b1);
    return sm80_gemm_choose_uniform(p->device, p->l, p->m, p->n, p->k, *kind, OUTPUTS_PER_WARP, choice, params);
}

nk_status sm80_plan_dual_gemm(const nk_dual_gemm_problem *p, nk_plan *plan)
{
    sm80_gemm_choice choice;
    sm80_gemm_params params;
    int kind = 0;
    NK_TRY(choose(p, &kind, &choice, &params));
    plan->kernel = kernels[choice.tile][kind].name;
    sm80_gemm_describe(&choice, kind, OUTPUTS_PER_WARP, plan);
    return NK_OK;
}

nk_status sm80_run_dual_gemm(const nk_dual_gemm_problem *p, const nk_exec *exec)
{
    sm80_gemm_choice choice;
    sm80_gemm_params params;
    int kind = 0;
    NK_TRY(choose(p, &kind, &choice, &params));
    params.partials = exec->workspace;
    int32_t threads = 32 * sm80_gemm_tiles[choice.tile].warps;
    cuda_grid grid = {choice.grid, 1, 1, threads, choice.smem_bytes};
    void *args[] = {(void *)(uintptr_t)p, &params};
    NK_TRY(cuda_launch(&kernels[choice.tile][kind], p->device, exec->stream, &grid, args));
    if (choice.reduce_grid == 0) return NK_OK;
    cuda_grid sum = {choice.reduce_grid, 1, 1, threads, 0};
    return cuda_launch(&kernels[choice.tile][REDUCE], p->device, exec->stream, &sum, args);
}
