/* Experts with few rows on Hopper: each row of D is the gemv of a token with its expert's matrix. */
#include "sm90/sm90_backend.h"

#include "sm90_gemv_scheduler.h"

/* Each row reads its expert's matrix anew. With 256 rows the tiles of sm90/gemm were faster for every model. */
#define MAX_EXPERT_ROWS 128

/* The kernels compute a gemv with a batch for each row of D. N counts the rows of both, gates and ups. */
static nk_gemv_problem batch_per_row(const gemm_desc *d)
{
    nk_gemv_problem rows = *d->gemm;
    rows.l = d->gemm->m;
    rows.m = 1;
    rows.n *= gemm_matrices(d);
    return rows;
}

/* For the access, strides between experts and between tokens count even if there is one of them. */
static bool is_narrow(const gemm_desc *d, const nk_operand *b)
{
    nk_gemv_problem p = *d->gemm;
    p.l = p.m = 2;
    p.b = *b;
    p.a.batch_stride = p.a.sf_batch_stride = 0;
    return sm90_gemv_access_of(&p) == SM90_GEMV_NARROW;
}

static bool fits_gemv(const gemm_desc *d)
{
    const nk_gemm_problem *p = d->gemm;
    const bool has_atoms_per_expert = p->a.dtype == NK_E2M1X2 && p->a.sf_layout == NK_SF_BLOCKED && !gemm_gathers(d);
    const bool encodes = d->gated && d->gated->encoded.wanted; /* a scale factor's features must be neighbours */
    const bool fits_dual = !d->up || (p->n % SM90_GEMV_M8 == 0 && !(encodes && p->b.sf_layout == NK_SF_BLOCKED));
    return p->b.dtype == NK_E2M1X2 && gemm_experts(d) <= INT32_MAX && p->k > 0 && p->m <= MAX_EXPERT_ROWS &&
           !has_atoms_per_expert && fits_dual && !is_narrow(d, &p->b) && !(d->up && is_narrow(d, d->up));
}

nk_status sm90_plan_gemv_experts(const gemm_desc *d, const nk_settings *settings, nk_plan *found,
                                 sm90_gemv_choice *choice)
{
    nk_gemv_problem rows = batch_per_row(d);
    const nk_dtype dtype = rows.a.dtype;
    const sm90_gemv_variant variant = {.kind = dtype == NK_F16    ? SM90_GEMV_FP16
                                               : dtype == NK_BF16 ? SM90_GEMV_BF16
                                                                  : SM90_GEMV_CODES_AS_FP16,
                                       .is_dual = d->up,
                                       .has_experts = true};
    if (!fits_gemv(d)) return NK_DECLINED;
    rows.l = gemm_expected_m(d); /* the CTAs of rows that have no expert exit at once */
    NK_TRY(sm90_gemv_plan(&rows, &variant, settings, found, choice));
    found->grid = d->gemm->m * choice->schedule.clusters * choice->schedule.scheduler.cluster;
    found->why = "few rows: each reads its expert's weights";
    return NK_OK;
}

nk_status sm90_run_gemv_experts(const gemm_desc *d, const sm90_gemv_choice *choice, const nk_exec *exec)
{
    const nk_gemv_problem rows = batch_per_row(d);
    sm90_gemv_dual dual = {0};
    sm90_gemv_experts experts = {
        .offsets = d->experts->offsets, .experts = (int32_t)gemm_experts(d), .rows = d->experts->rows};
    if (d->gated) {
        dual = (sm90_gemv_dual){.b = *d->up,
                                .alpha = d->gated->alpha2,
                                .bias = d->gated->bias2,
                                .activation = d->gated->activation,
                                .first_sf_row = (int32_t)(d->gemm->n % NK_SF_ATOM_ROWS)};
        experts.encoded = d->gated->encoded;
    }
    return sm90_gemv_run(&rows, &dual, &experts, choice, exec);
}
