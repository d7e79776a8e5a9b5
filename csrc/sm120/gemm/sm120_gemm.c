/* The sm120 GEMM family, of NVFP4 tokens: its tile configurations and kernels. Then the cells of the sm120 row of the
 * backend table. */
#include "sm120_gemm_family.h"

#include "gemm/gemm_gemv.h"
#include "sm120/gemv/sm120_gemv.h"
#include "sm120_gemm_config.h"
#include "sm120_gemm_costs.h"

static const gemm_config configs[SM120_GEMM_TILE_COUNT] = {
#define CONFIG(...) SM120_CONFIG(SM120_GEMM, SM120_GEMM_STEP, __VA_ARGS__)
    SM120_GEMM_TILES(CONFIG)
#undef CONFIG
};

#define OF_GEMM(name, ...) [SM120_GEMM_##name] = &sm120_gemm_##name,
#define OF_DUAL(name, ...) [SM120_GEMM_##name] = &sm120_dual_gemm_##name,
#define OF_GROUPED(name, ...) [SM120_GEMM_##name] = &sm120_grouped_gemm_##name,
#define OF_GATED(name, ...) [SM120_GEMM_##name] = &sm120_grouped_dual_gemm_##name,
static cuda_kernel *const kernels[GEMM_OPERATORS][SM120_GEMM_TILE_COUNT] = {
    [GEMM] = {SM120_GEMM_TILES(OF_GEMM)},
    [GEMM_DUAL] = {SM120_GEMM_TILES(OF_DUAL)},
    [GEMM_GROUPED] = {SM120_GEMM_TILES(OF_GROUPED)},
    [GEMM_GROUPED_DUAL] = {SM120_GEMM_TILES(OF_GATED)},
    [GEMM_LIST] = {SM120_GEMM_TILES(OF_GROUPED)},
};

static cuda_kernel *sm120_gemm_kernel_of(const gemm_desc *d, int config)
{
    return sm120_kernel_of(kernels[d->op], d, config);
}

static int32_t sm120_gemm_smem_bytes(int tokens, int stages) { return SM120_GEMM_SMEM(tokens, stages); }

static const sm120_mainloop mainloop = {
    .mma_k = SM120_GEMM_MMA_K, .mma_cycles = SM120_GEMM_MMA_CYCLES, .smem_bytes = sm120_gemm_smem_bytes};

GEMM_FAMILY(sm120, gemm, NULL, SM120_GEMM_TILES, .kernel = sm120_gemm_kernel_of, .why_not = sm120_why_not,
            .schedules = 1, SM120_SHARED_MEMBERS(&mainloop));

/* ---------------------------------------------------------------------------------------------------------------- */
/* The row                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

static const gemm_family *sm120_family_of(const gemm_desc *d)
{
    return d->gemm->a.dtype == NK_E2M1X2 ? &sm120_gemm : &sm120_kind_f16;
}

static const char *sm120_row_why_not(const gemm_desc *d, const nk_settings *settings)
{
    (void)settings;
    if (gemm_encodes(d)) return GEMM_NO_CODES;
    return d->list && d->list->is_activated ? GEMM_NO_ACTIVATED_LISTS : NULL;
}

static nk_status sm120_gemm_plan_gemv(const gemm_desc *d, const nk_settings *settings, nk_plan *plan, void *choice,
                                      double *us)
{
    return gemm_plan_few_tokens(&sm120_gemv_row, sm120_family_of(d), d, settings, plan, choice, us);
}

static const gemm_row sm120_gemm_row = {.family = sm120_family_of,
                                        .why_not = sm120_row_why_not,
                                        .plan_gemv = sm120_gemm_plan_gemv,
                                        .run_gemv = gemm_run_few_tokens};
GEMM_CELLS(sm120)
