/* Plans and runs gemm of a few tokens by the gemv of Blackwell's rows. */
#include "gemm_gemv.h"

/* One token goes to a gemv, of this row or a later one. No batch-invariant call does: the gemv adds in another order.
 */
nk_status gemm_plan_few_tokens(const cuda_gemv_row *gemv, const gemm_family *tiles, const gemm_desc *d,
                               const nk_settings *settings, nk_plan *plan, void *choice, double *us)
{
    gemv_choice *c = choice;
    const bool is_forced = nk_tile_forced(settings, tiles->tiles) != NK_TILE_ANY;
    if (d->op != GEMM || settings->batch_invariant || is_forced || d->gemm->m > GEMV_MAX_TOKENS) return NK_DECLINED;
    const nk_status status = cuda_plan_gemv(d->gemm, gemv, settings, plan, c);
    if (status == NK_OK) *us = nk_tile_forced(settings, gemv->family) != NK_TILE_ANY ? 0 : c->schedule.us;
    if (d->gemm->m == 1) *us = 0;
    return status;
}

nk_status gemm_run_few_tokens(const gemm_desc *d, const void *choice, const nk_exec *exec)
{
    return cuda_run_gemv(d->gemm, choice, exec);
}
