/* What the two GEMM families of sm120 share: NVFP4 tokens (sm120/gemm) and 16-bit ones (sm120/kind_f16). A CTA has a
 * tile of SM120_GEMM_TILE_N weight rows and all of K, or a part of K: schedule s of a family that has several divides a
 * tile of gemm or dual_gemm among s + 1 CTAs. */
#ifndef NK_SM120_GEMM_FAMILY_H
#define NK_SM120_GEMM_FAMILY_H

#include "gemm/gemm_family.h"
#include "sm120/sm120_backend.h"

extern const gemm_family sm120_gemm, sm120_kind_f16;

/* What differs between the two families; gemm_family.mainloop points to it. */
typedef struct sm120_mainloop {
    int32_t mma_k;                                 /* elements of K that an MMA takes */
    double mma_cycles;                             /* that it takes of one of an SM's four schedulers */
    double decode_cycles;                          /* the same of a warp's step, that its MMAs do not hide */
    int32_t (*smem_bytes)(int tokens, int stages); /* of a CTA */
} sm120_mainloop;

/* Of both families. Tiles are as many as any offsets of experts can need. */
int64_t sm120_tiles(const gemm_desc *d, const gemm_config *t);
const char *sm120_why_not(const gemm_desc *d, const gemm_query *q);
const char *sm120_why_not_config(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c);
double sm120_us(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c);
void sm120_derive(const gemm_desc *d, const gemm_query *q, gemm_launch *launch);
nk_status sm120_launch(const gemm_desc *d, const gemm_launch *launch, const nk_exec *exec);

/* The members of a gemm_family that both families have. All their tiles add alike, where they are not divided. */
#define SM120_SHARED_MEMBERS(of)                                                                              \
    .invariant = NK_TILE_ANY, .why_not_config = sm120_why_not_config, .us = sm120_us, .derive = sm120_derive, \
    .launch = sm120_launch, .mainloop = of

/* A tile of a family's table as a gemm_config: INDEX is what its number's name begins with, STEP elements of K. */
#define SM120_CONFIG(INDEX, STEP, name, tokens, warps_m, pipeline_stages, ctas) \
    [INDEX##_##name] = {.tile_m = tokens,                                       \
                        .tile_n = SM120_GEMM_TILE_N,                            \
                        .tile_k = STEP,                                         \
                        .stages = pipeline_stages,                              \
                        .warpgroups = warps_m,                                  \
                        .ctas_per_sm = ctas},

/* Of one operator's kernels. None applies an activation to grouped_gemm's sums. */
static inline cuda_kernel *sm120_kernel_of(cuda_kernel *const *of_operator, const gemm_desc *d, int config)
{
    return d->activation && d->op != GEMM_GROUPED_DUAL ? NULL : of_operator[config];
}

#endif
