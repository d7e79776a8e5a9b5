/* Experts with few rows on Hopper: each row of D is the gemv of a token with its expert's matrix. */
#include "sm90/sm90_backend.h"

#include "sm90_gemv_scheduler.h"

/* Each row reads its expert's matrix anew. With 256 rows the tiles of sm90/gemm were faster for every model. */
#define MAX_EXPERT_ROWS 128

static bool is_narrow(const nk_gemv_problem *p) { return sm90_gemv_access_of(p) == SM90_GEMV_NARROW; }

/* The kernels compute a gemv with a batch for each row of D. */
static nk_gemv_problem batch_per_row(const nk_gemm_problem *all)
{
    nk_gemv_problem rows = *all;
    rows.l = all->m;
    rows.m = 1;
    return rows;
}

/* For the access: strides between experts and between tokens count even if there is one of them. */
static nk_gemv_problem addresses_of(const nk_gemm_problem *all, const nk_operand *b)
{
    nk_gemv_problem p = *all;
    p.l = p.m = 2;
    p.b = *b;
    p.a.batch_stride = p.a.sf_batch_stride = 0;
    return p;
}

static bool fits_gemv(const nk_grouped_gemm_problem *p)
{
    const nk_operand *a = &p->all.a;
    const bool has_atoms_per_expert = a->dtype == NK_E2M1X2 && a->sf_layout == NK_SF_BLOCKED && !p->rows.data;
    return !p->list && p->all.b.dtype == NK_E2M1X2 && p->groups > 0 && p->groups <= INT32_MAX && p->all.k > 0 &&
           p->all.m <= MAX_EXPERT_ROWS && !has_atoms_per_expert;
}

static sm90_gemv_variant variant_of(const nk_grouped_gemm_problem *p, bool is_dual)
{
    const nk_dtype dtype = p->all.a.dtype;
    return (sm90_gemv_variant){.kind = dtype == NK_F16    ? SM90_GEMV_FP16
                                       : dtype == NK_BF16 ? SM90_GEMV_BF16
                                                          : SM90_GEMV_EXPERT_CODES,
                               .is_dual = is_dual,
                               .has_experts = true};
}

static sm90_gemv_experts experts_of(const nk_grouped_gemm_problem *p)
{
    return (sm90_gemv_experts){.offsets = p->offsets, .experts = (int32_t)p->groups, .rows = p->rows};
}

static nk_status plan_expert_rows(const nk_gemv_problem *rows, const sm90_gemv_variant *variant,
                                  const nk_settings *settings, nk_plan *found, sm90_gemv_choice *choice)
{
    NK_TRY(sm90_gemv_plan(rows, variant, settings, found, choice));
    found->why = "few rows: each reads its expert's weights";
    return NK_OK;
}

nk_status sm90_plan_gemv_experts(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *found,
                                 sm90_gemv_choice *choice)
{
    const nk_gemv_problem addresses = addresses_of(&p->all, &p->all.b), rows = batch_per_row(&p->all);
    const sm90_gemv_variant variant = variant_of(p, false);
    const bool is_forced = nk_tile_forced(settings, &sm90_gemm_family) != NK_TILE_ANY;
    if (is_forced || !fits_gemv(p) || is_narrow(&addresses)) return NK_DECLINED;
    return plan_expert_rows(&rows, &variant, settings, found, choice);
}

nk_status sm90_run_gemv_experts(const nk_grouped_gemm_problem *p, const sm90_gemv_choice *choice, const nk_exec *exec)
{
    const nk_gemv_problem rows = batch_per_row(&p->all);
    const sm90_gemv_experts experts = experts_of(p);
    return sm90_gemv_run(&rows, &(sm90_gemv_dual){0}, &experts, choice, exec);
}

/* An expert's ups: N rows behind its gates. */
static nk_operand ups_behind(const nk_gemm_problem *gates)
{
    nk_operand ups = gates->b;
    ups.data += gates->n * ups.row_stride;
    ups.sf += gates->n * ups.sf_row_stride;
    return ups;
}

/* N counts the rows of both, gates and ups. */
static nk_gemv_problem dual_batch_per_row(const nk_gemm_problem *gates)
{
    nk_gemv_problem rows = batch_per_row(gates);
    rows.n *= 2;
    return rows;
}

nk_status sm90_plan_gemv_gated_experts(const nk_grouped_dual_gemm_problem *p, const nk_settings *settings,
                                       nk_plan *found, sm90_gemv_choice *choice)
{
    const nk_gemm_problem *gates = &p->gates.all;
    const bool is_forced = nk_tile_forced(settings, &sm90_gemm_family) != NK_TILE_ANY;
    if (is_forced || !fits_gemv(&p->gates) || gates->b.sf_layout != NK_SF_LINEAR || gates->n % SM90_GEMV_M8 != 0)
        return NK_DECLINED;
    const nk_operand ups = ups_behind(gates);
    const nk_gemv_problem of_gates = addresses_of(gates, &gates->b), of_ups = addresses_of(gates, &ups),
                          rows = dual_batch_per_row(gates);
    const sm90_gemv_variant variant = variant_of(&p->gates, true);
    if (is_narrow(&of_gates) || is_narrow(&of_ups)) return NK_DECLINED;
    return plan_expert_rows(&rows, &variant, settings, found, choice);
}

nk_status sm90_run_gemv_gated_experts(const nk_grouped_dual_gemm_problem *p, const sm90_gemv_choice *choice,
                                      const nk_exec *exec)
{
    const nk_gemv_problem rows = dual_batch_per_row(&p->gates.all);
    const sm90_gemv_dual dual = {.b = ups_behind(&p->gates.all), .alpha = p->alpha_ups, .activation = p->activation};
    sm90_gemv_experts experts = experts_of(&p->gates);
    experts.encoded = p->encoded;
    return sm90_gemv_run(&rows, &dual, &experts, choice, exec);
}
