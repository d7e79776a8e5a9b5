/* Picks a tile and a K split for a matrix product: a pure function of its sizes and the GPU. */
#ifndef NK_SM80_GEMM_PLAN_H
#define NK_SM80_GEMM_PLAN_H

#include "sm80_backend.h"

#include "sm80_gemm_config.h"
#include "sm80_gemm_params.h"

typedef struct sm80_gemm_tile {
    const char *name;
    int32_t tokens, warps, stages, ctas; /* ctas: an SM's, as far as registers allow */
} sm80_gemm_tile;

extern const sm80_gemm_tile sm80_gemm_tiles[SM80_GEMM_TILE_COUNT];

typedef struct sm80_gemm_choice {
    int tile; /* index of sm80_gemm_tiles */
    int32_t smem_bytes;
    int64_t grid, reduce_grid;
    sm80_gemm_params params;
    int64_t workspace_bytes;
    bool batch_invariant;
} sm80_gemm_choice;

/* SM80_GEMM_CODES, .. from the operands of a product. */
int sm80_gemm_kind(const nk_operand *a, const nk_operand *b);

/* l products of m tokens and n weight rows; `rows_per_tile` weight rows (outputs) make a warp's 32. */
nk_status sm80_gemm_choose(nk_device device, int64_t l, int64_t m, int64_t n, int64_t k, int kind, int outputs_per_warp,
                           sm80_gemm_choice *choice);

/* Fills a plan from a choice. */
void sm80_gemm_describe(const sm80_gemm_choice *choice, int kind, int outputs_per_warp, nk_plan *plan);

#endif
