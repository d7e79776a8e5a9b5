/* What the two GEMM families of sm100 share: NVFP4 tokens (sm100/gemm) and 16-bit ones (sm100/kind_f16). A tile is
 * SM100_GEMM_CTA_M rows of operand M for each CTA (of a pair, or of multicast pairs) and MMA_N rows of operand N:
 * tokens, unless they are the MMA's M. A gemm_config has MMA_N as tile_m, MMA_M as tile_n, as if weights were operand
 * M. */
#ifndef NK_SM100_GEMM_FAMILY_H
#define NK_SM100_GEMM_FAMILY_H

#include "cuda/cuda_encode.h"
#include "gemm/gemm_family.h"
#include "sm100/sm100_backend.h"

#include "sm100_gemm_config.h"
#include "sm100_gemm_costs.h"

extern const gemm_family sm100_gemm, sm100_kind_f16;

/* Of a CTA. The table of experts comes on top. */
typedef struct sm100_resources {
    int32_t threads, stages, smem_bytes;
} sm100_resources;

/* What differs between the two families; gemm_family.mainloop points to it. */
typedef struct sm100_mainloop {
    bool tokens_may_be_mma_m; /* the plan does so where it costs less, in lists where it makes fewer tiles */
    bool copies_sf;           /* bulk copies bring scale factors that are whole atoms */
    const char *(*why)(const gemm_desc *d, bool tokens_are_mma_m); /* what the plan says */
    sm100_resources (*resources)(const gemm_desc *d, const gemm_config *t);
    /* Microseconds of a launch in which the busiest CTA has `waves` tiles; with 0 what a launch costs at least. */
    double (*us)(const gemm_desc *d, const gemm_config *t, double waves);
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

/* The members of a gemm_family that both families have. */
#define SM100_SHARED_MEMBERS(of)                                                                            \
    .why_not_config = sm100_why_not_config, .us = sm100_us, .derive = sm100_derive, .launch = sm100_launch, \
    .longest_first = true, .mainloop = of

#endif
