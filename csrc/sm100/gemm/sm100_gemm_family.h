/* What the two GEMM families of sm100 share: NVFP4 tokens (sm100/gemm) and 16-bit ones (sm100/kind_f16). A tile is
 * MMA_M rows of one operand for each of its CTAs, and MMA_N rows of the other: tokens, unless they are the MMA's M. */
#ifndef NK_SM100_GEMM_FAMILY_H
#define NK_SM100_GEMM_FAMILY_H

#include "cuda/cuda_encode.h"
#include "gemm/gemm_family.h"
#include "sm100/sm100_backend.h"

#include "sm100_gemm_config.h"
#include "sm100_gemm_costs.h"

extern const gemm_family sm100_gemm, sm100_kind_f16;

/* Of a CTA. Experts' list comes on top. */
typedef struct sm100_resources {
    int32_t threads, stages, smem_bytes;
} sm100_resources;

/* How a family differs: its `mainloop`. */
typedef struct sm100_mainloop {
    bool tokens_may_be_mma_m;                                      /* where that makes fewer tiles, or costs less */
    bool copies_sf;                                                /* as whole atoms, where they are such */
    const char *(*why)(const gemm_desc *d, bool tokens_are_mma_m); /* for people */
    sm100_resources (*resources)(const gemm_desc *d, const gemm_config *t);
    /* Of a launch in which each CTA has so many tiles of p. */
    double (*us)(const gemm_desc *d, const nk_gemm_problem *p, const gemm_config *t, double waves);
} sm100_mainloop;

/* Whether a tensor map describes a, b or up of a description. */
bool sm100_has_map(const gemm_desc *d, const nk_operand *o, bool batch_invariant);

/* Of both families. */
static inline const char *sm100_why_not_sizes(const gemm_desc *d)
{
    return gemm_tokens(d) > GEMM_LARGEST && d->gemm->k > 0 ? GEMM_TOO_LARGE : gemm_why_not_sizes(d);
}
const char *sm100_why_not_config(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c);
double sm100_us(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c);
void sm100_derive(const gemm_desc *d, const gemm_query *q, gemm_launch *launch);
nk_status sm100_launch(const gemm_desc *d, const gemm_launch *launch, const nk_exec *exec);

#define SM100_GEMM_FAMILY(of)                                                                               \
    .why_not_config = sm100_why_not_config, .us = sm100_us, .derive = sm100_derive, .launch = sm100_launch, \
    .longest_first = true, .mainloop = of

#endif
