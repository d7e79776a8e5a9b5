/* What a tile of the sm90 GEMM family makes of a problem: pure functions of its sizes, its addresses and the GPU. */
#ifndef NK_SM90_GEMM_PLAN_H
#define NK_SM90_GEMM_PLAN_H

#include "sm90/sm90_backend.h"

#include "sm90_gemm_config.h"

typedef struct sm90_gemm_shape {
    int32_t tokens, parts, cluster, slots, steps; /* see SM90_GEMM_TILES */
    int32_t threads, smem_bytes;
} sm90_gemm_shape;

extern const sm90_gemm_shape sm90_gemm_shapes[SM90_GEMM_TILE_COUNT];

/* Whether CTAs walk over tiles, as many as there are SMs, since no K is divided. */
static inline bool sm90_gemm_walks(const sm90_gemm_shape *t) { return t->parts * t->cluster == 1; }

#define SM90_GEMM_MOST_WORKSPACE (256 << 20)

/* Bytes of workspace: tokens with 16 bits an element, K rounded up to steps. */
int64_t sm90_gemm_workspace_bytes(const nk_gemm_problem *p);

/* Why this tile cannot serve the problem, or NULL. */
const char *sm90_gemm_why_not(const nk_gemm_problem *p, const cuda_gpu *gpu, bool batch_invariant, int tile);

sm90_gemm_work sm90_gemm_work_of(const nk_gemm_problem *p, int tile);

#endif
