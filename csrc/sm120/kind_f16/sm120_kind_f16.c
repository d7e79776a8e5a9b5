/* The sm120 kind_f16 family, of 16-bit tokens and NVFP4 weights: its tile configurations and kernels. */
#include "sm120/gemm/sm120_gemm_family.h"

#include "sm120_kind_f16_config.h"
#include "sm120_kind_f16_costs.h"

static const gemm_config configs[SM120_KIND_F16_TILE_COUNT] = {
#define CONFIG(...) SM120_CONFIG(SM120_KIND_F16, SM120_KIND_F16_STEP, __VA_ARGS__)
    SM120_KIND_F16_TILES(CONFIG)
#undef CONFIG
};

#define OF_GEMM(name, ...) [SM120_KIND_F16_##name] = &sm120_kind_f16_gemm_##name,
#define OF_DUAL(name, ...) [SM120_KIND_F16_##name] = &sm120_kind_f16_dual_gemm_##name,
#define OF_GROUPED(name, ...) [SM120_KIND_F16_##name] = &sm120_kind_f16_grouped_gemm_##name,
#define OF_GATED(name, ...) [SM120_KIND_F16_##name] = &sm120_kind_f16_grouped_dual_gemm_##name,
static cuda_kernel *const kernels[GEMM_OPERATORS][SM120_KIND_F16_TILE_COUNT] = {
    [GEMM] = {SM120_KIND_F16_TILES(OF_GEMM)},
    [GEMM_DUAL] = {SM120_KIND_F16_TILES(OF_DUAL)},
    [GEMM_GROUPED] = {SM120_KIND_F16_TILES(OF_GROUPED)},
    [GEMM_GROUPED_DUAL] = {SM120_KIND_F16_TILES(OF_GATED)},
    [GEMM_LIST] = {SM120_KIND_F16_TILES(OF_GROUPED)},
};

static cuda_kernel *sm120_f16_kernel_of(const gemm_desc *d, int config)
{
    return sm120_kernel_of(kernels[d->op], d, config);
}

static int32_t sm120_f16_smem_bytes(int tokens, int stages) { return SM120_KIND_F16_SMEM(tokens, stages); }

static const sm120_mainloop mainloop = {.mma_k = SM120_KIND_F16_MMA_K,
                                        .mma_cycles = SM120_KIND_F16_MMA_CYCLES,
                                        .decode_cycles = SM120_KIND_F16_DECODE_CYCLES,
                                        .smem_bytes = sm120_f16_smem_bytes};

GEMM_FAMILY(sm120, kind_f16, NULL, SM120_KIND_F16_TILES, .kernel = sm120_f16_kernel_of, .why_not = sm120_why_not,
            .schedules = SM120_KIND_F16_MOST_PARTS, SM120_SHARED_MEMBERS(&mainloop));
