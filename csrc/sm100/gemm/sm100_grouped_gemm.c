/* grouped_gemm on Blackwell: contiguous experts, in one launch. Tiles of sm100/halves have 16-bit tokens. */
#include "sm100/halves/sm100_halves.h"

#define KERNEL(name, ...) [SM100_GEMM_##name] = &sm100_grouped_gemm_##name,
static cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT] = {SM100_GEMM_GROUPED_TILES(KERNEL)};

/* Rows of atoms that the tokens' scale factors have. */
static int64_t atom_rows_of(const nk_grouped_gemm_problem *p)
{
    const int64_t row_bytes = nk_ceil_div(p->all.k, NK_SF_VEC * NK_SF_ATOM_COLS) * NK_SF_ATOM_BYTES;
    return p->all.a.sf_layout == NK_SF_LINEAR || row_bytes == 0 ? INT64_MAX : p->a_sf_bytes / row_bytes;
}

static sm100_gemm_product product_of(const nk_grouped_gemm_problem *p)
{
    return (sm100_gemm_product){
        .first = &p->all, .problem = &p->all, .has_experts = true, .experts = {p->offsets, p->groups, atom_rows_of(p)}};
}

static bool are_halves(const nk_grouped_gemm_problem *p) { return !p->list && p->all.a.dtype != NK_E2M1X2; }

static const char *why_not(const nk_grouped_gemm_problem *p)
{
    if (p->list) return "it is a list of groups";
    if (p->rows.data) return "tokens are taken by index";
    if (!are_halves(p) && atom_rows_of(p) == 0) return "the tokens have no scale factors";
    return NULL;
}

nk_status sm100_plan_grouped_gemm(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                                  void *choice)
{
    const char *why = why_not(p);
    const nk_family *family = are_halves(p) ? &sm100_halves_family : &sm100_gemm_family;
    const int forced = nk_tile_forced(settings, family);
    if (why && forced != NK_TILE_ANY) return NK_TILE_REFUSE(family, forced, "%s", why);
    if (why) return nk_decline(plan, why);
    const sm100_gemm_product product = product_of(p);
    if (are_halves(p)) return sm100_halves_plan(&product, settings, plan, choice);
    return sm100_gemm_plan(&product, settings, kernels, plan, choice);
}

nk_status sm100_run_grouped_gemm(const nk_grouped_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const sm100_gemm_product product = product_of(p);
    if (are_halves(p)) return sm100_halves_run(&product, choice, exec);
    return sm100_gemm_run(&product, choice, exec);
}
