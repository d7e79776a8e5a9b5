/* dual_gemm on Hopper: the tiles of gemm, which hold as many rows of b1 as of b2. For one 16-bit token the gemv. */
#include "sm90/gemv/sm90_gemv_scheduler.h"
#include "sm90_gemm_plan.h"

#define KERNELS(name, ...) [SM90_GEMM_##name] = {&sm90_dual_gemm_##name##_fp16, &sm90_dual_gemm_##name##_bf16},
static const sm90_gemm_kernels kernels[SM90_GEMM_TILE_COUNT] = {SM90_GEMM_TILES(KERNELS)};

typedef struct dual_choice {
    bool is_gemv;
    union {
        sm90_gemv_choice gemv;
        sm90_gemm_choice product;
    };
} dual_choice;

NK_CHOICE_FITS(dual_choice);

/* The product with b1. */
static nk_gemm_problem gates_of(const nk_dual_gemm_problem *p)
{
    return (nk_gemm_problem){
        .device = p->device, .l = p->l, .m = p->m, .n = p->n, .k = p->k, .a = p->a, .b = p->b1, .d = p->d};
}

/* What a slice has of the problem. */
static nk_dual_gemm_problem slice_of(const nk_dual_gemm_problem *p, const sm90_gemm_slices *s, int64_t batch,
                                     int64_t row)
{
    nk_dual_gemm_problem slice = *p;
    slice.l = p->l - batch < s->batches ? p->l - batch : s->batches;
    slice.m = p->m - row < s->rows ? p->m - row : s->rows;
    sm90_gemm_move_weights(&slice.b1, batch);
    sm90_gemm_move_weights(&slice.b2, batch);
    sm90_gemm_move_tokens(&slice.a, &slice.d, p->k, batch, row);
    return slice;
}

nk_status sm90_plan_dual_gemm(const nk_dual_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    dual_choice *c = choice;
    c->is_gemv = false;
    if (nk_tile_forced(settings, &sm90_gemm_family) == NK_TILE_ANY) {
        const nk_status status = sm90_plan_gemv_dual(p, settings, plan, &c->gemv);
        c->is_gemv = status == NK_OK;
        if (status != NK_DECLINED) return status;
    }
    const nk_gemm_problem whole = gates_of(p);
    const sm90_gemm_slices slices = sm90_gemm_slices_of(&whole);
    if (!sm90_gemm_slices_are_aligned(&whole, &p->b2)) return nk_decline(plan, "batches are not aligned");
    const nk_dual_gemm_problem slice = slice_of(p, &slices, 0, 0);
    const nk_gemm_problem gates = gates_of(&slice);
    const sm90_gemm_product product = {.first = &gates, .ups = &slice.b2, .problem = &slice};
    const int forced = nk_tile_forced(settings, &sm90_gemm_family);
    if (forced != NK_TILE_ANY) return sm90_gemm_plan(&product, settings, kernels, forced, plan, &c->product);
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const sm90_gemm_pick pick = sm90_gemm_pick_of(&product, gpu, settings->batch_invariant);
    return sm90_gemm_plan_picked(&product, settings, kernels, &pick, plan, &c->product);
}

nk_status sm90_run_dual_gemm(const nk_dual_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const dual_choice *c = choice;
    if (c->is_gemv) return sm90_run_gemv_dual(p, &c->gemv, exec);
    const nk_gemm_problem whole = gates_of(p);
    const sm90_gemm_slices slices = sm90_gemm_slices_of(&whole);
    for (int64_t batch = 0; batch < p->l; batch += slices.batches) {
        for (int64_t row = 0; row < p->m; row += slices.rows) {
            const nk_dual_gemm_problem slice = slice_of(p, &slices, batch, row);
            const nk_gemm_problem gates = gates_of(&slice);
            const sm90_gemm_product product = {.first = &gates, .ups = &slice.b2, .problem = &slice};
            NK_TRY(sm90_gemm_run(&product, &c->product, exec));
        }
    }
    return NK_OK;
}
