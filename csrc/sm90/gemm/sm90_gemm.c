/* gemm on Hopper: plan and run. The tensor cores' tiles, or for few tokens the gemv, whichever is faster by cost. */
#include "sm90/gemv/sm90_gemv_scheduler.h"
#include "sm90_gemm_model.h"

#define KERNELS(name, ...) [SM90_GEMM_##name] = {&sm90_gemm_##name##_fp16, &sm90_gemm_##name##_bf16},
static const sm90_gemm_kernels kernels[SM90_GEMM_TILE_COUNT] = {SM90_GEMM_TILES(KERNELS)};

typedef struct gemm_choice {
    bool is_gemv;
    union {
        sm90_gemv_choice gemv;
        sm90_gemm_choice product;
    };
} gemm_choice;

NK_CHOICE_FITS(gemm_choice);

/* What a slice has of the problem. */
static nk_gemm_problem slice_of(const nk_gemm_problem *p, const sm90_gemm_slices *s, int64_t batch, int64_t row)
{
    nk_gemm_problem slice = *p;
    slice.l = p->l - batch < s->batches ? p->l - batch : s->batches;
    slice.m = p->m - row < s->rows ? p->m - row : s->rows;
    sm90_gemm_move_weights(&slice.b, batch);
    sm90_gemm_move_tokens(&slice.a, &slice.d, p->k, batch, row);
    return slice;
}

static nk_status plan_slice(const nk_gemm_problem *slice, double count, const nk_settings *settings, nk_plan *plan,
                            gemm_choice *c)
{
    const sm90_gemm_product product = {.first = slice, .problem = slice};
    const int forced = nk_tile_forced(settings, &sm90_gemm_family);
    if (forced != NK_TILE_ANY) return sm90_gemm_plan(&product, settings, kernels, forced, plan, &c->product);
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(slice->device, &gpu));
    const sm90_gemm_pick pick = sm90_gemm_pick_of(&product, gpu, settings->batch_invariant);
    if (c->is_gemv && (pick.tile == NK_TILE_ANY || sm90_gemm_loses(count * pick.us, c->gemv.schedule.us))) return NK_OK;
    c->is_gemv = false;
    return sm90_gemm_plan_picked(&product, settings, kernels, &pick, plan, &c->product);
}

nk_status sm90_plan_gemm(const nk_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    gemm_choice *c = choice;
    c->is_gemv = false;
    if (nk_tile_forced(settings, &sm90_gemm_family) == NK_TILE_ANY && p->m <= SM90_GEMV_MAX_TOKENS) {
        const nk_status status = sm90_plan_gemv(p, settings, plan, &c->gemv);
        c->is_gemv = status == NK_OK;
        if (status != NK_DECLINED && (!c->is_gemv || nk_tile_forced(settings, &sm90_gemv_family) != NK_TILE_ANY))
            return status;
    }
    const sm90_gemm_slices slices = sm90_gemm_slices_of(p);
    if (!c->is_gemv && !sm90_gemm_slices_are_aligned(p, NULL)) return nk_decline(plan, "batches are not aligned");
    const nk_gemm_problem first = slice_of(p, &slices, 0, 0);
    const double count = (double)p->l * (double)p->m / ((double)first.l * (double)first.m);
    return plan_slice(&first, count, settings, plan, c);
}

nk_status sm90_run_gemm(const nk_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const gemm_choice *c = choice;
    if (c->is_gemv) return sm90_run_gemv(p, &c->gemv, exec);
    const sm90_gemm_slices slices = sm90_gemm_slices_of(p);
    for (int64_t batch = 0; batch < p->l; batch += slices.batches) {
        for (int64_t row = 0; row < p->m; row += slices.rows) {
            const nk_gemm_problem slice = slice_of(p, &slices, batch, row);
            const sm90_gemm_product product = {.first = &slice, .problem = &slice};
            NK_TRY(sm90_gemm_run(&product, &c->product, exec));
        }
    }
    return NK_OK;
}
