/* grouped_dual_gemm on Blackwell: tiles of dual_gemm, each with tokens of one expert. Tiles of sm100/kind_f16 have
 * 16-bit tokens. */
#include "sm100/kind_f16/sm100_kind_f16.h"

#define KERNEL(name, ...) [SM100_GEMM_##name] = &sm100_grouped_dual_gemm_##name,
static cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT] = {SM100_GEMM_GROUPED_DUAL_TILES(KERNEL)};

NK_CHOICE_FITS(sm100_gemm_choice);

/* The ups are an expert's rows behind its gates. Their blocked scale factors begin in the atom with the last gates'. */
static nk_operand ups_of(const nk_gemm_problem *gates)
{
    const int64_t atoms = gates->n / NK_SF_ATOM_ROWS, rows = gates->n;
    const int64_t atom_row_bytes = NK_SF_ATOM_ROWS * nk_sf_padded_cols(gates->k / NK_SF_VEC);
    nk_operand ups = gates->b;
    if (!ups.data) return ups; /* there are no experts */
    ups.data += rows * ups.row_stride;
    ups.sf += ups.sf_layout == NK_SF_BLOCKED ? atoms * atom_row_bytes : rows * ups.sf_row_stride;
    return ups;
}

/* What the kernels take. */
static nk_dual_gemm_problem pair_of(const nk_grouped_dual_gemm_problem *p)
{
    const nk_gemm_problem *g = &p->gates.all;
    nk_dual_gemm_problem pair = {.device = p->device, .l = 1, .m = g->m, .n = g->n, .k = g->k, .a = g->a, .d = g->d};
    pair.b1 = g->b;
    pair.b2 = ups_of(g);
    pair.alpha1 = g->alpha;
    pair.alpha2 = p->alpha_ups;
    pair.activation = p->activation;
    return pair;
}

static sm100_gemm_product product_of(const nk_grouped_dual_gemm_problem *p, const nk_dual_gemm_problem *pair)
{
    const bool blocked = pair->b2.sf_layout == NK_SF_BLOCKED;
    return (sm100_gemm_product){.first = &p->gates.all,
                                .ups = &pair->b2,
                                .problem = pair,
                                .has_experts = true,
                                .experts = sm100_gemm_experts_of(&p->gates),
                                .up_row_in_atom = blocked ? (int32_t)(pair->n % NK_SF_ATOM_ROWS) : 0};
}

static bool are_halves(const nk_grouped_dual_gemm_problem *p) { return p->gates.all.a.dtype != NK_E2M1X2; }

nk_status sm100_plan_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, const nk_settings *settings,
                                       nk_plan *plan, void *choice)
{
    const nk_dual_gemm_problem pair = pair_of(p);
    const sm100_gemm_product product = product_of(p, &pair);
    const nk_family *family = are_halves(p) ? &sm100_kind_f16_family : &sm100_gemm_family;
    const int forced = nk_tile_forced(settings, family);
    const char *why = p->encoded.wanted ? "it writes no codes" : NULL;
    if (why && forced != NK_TILE_ANY) return NK_TILE_REFUSE(family, forced, "%s", why);
    if (why) return nk_decline(plan, why);
    if (are_halves(p)) return sm100_kind_f16_plan(&product, settings, plan, choice);
    return sm100_gemm_plan(&product, settings, kernels, plan, choice);
}

nk_status sm100_run_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, const void *choice, const nk_exec *exec)
{
    const nk_dual_gemm_problem pair = pair_of(p);
    const sm100_gemm_product product = product_of(p, &pair);
    if (are_halves(p)) return sm100_kind_f16_run(&product, choice, exec);
    return sm100_gemm_run(&product, choice, exec);
}
