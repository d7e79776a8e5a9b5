/* Picks a tile for a matrix product and deals its steps of K out to CTAs: a pure function of its sizes and the GPU. */
#ifndef NK_SM80_GEMM_PLAN_H
#define NK_SM80_GEMM_PLAN_H

#include "sm80/sm80_backend.h"

#include "sm80_gemm_config.h"
#include "sm80_gemm_params.h"

#define SM80_MAX_UNITS INT32_MAX /* kernels count steps in 32 bits */

typedef struct sm80_gemm_tile {
    int32_t tokens, warps, stages, ctas; /* ctas: an SM's, as far as registers allow */
} sm80_gemm_tile;

extern const sm80_gemm_tile sm80_gemm_tiles[SM80_GEMM_TILE_COUNT];

/* Tiles of `per`, a power of two, that cover `size`. */
static inline int64_t sm80_cover(int64_t size, int32_t per) { return (size + per - 1) >> __builtin_ctz((unsigned)per); }

/* What there is to do with one of the tiles. */
typedef struct sm80_gemm_work {
    int64_t tiles, steps; /* steps: of all tiles together, a tile of K = 0 counting one */
} sm80_gemm_work;

/* Of a tile that an operator has no kernel for. */
#define SM80_GEMM_NO_KERNEL ((sm80_gemm_work){-1, -1})

/* A tile, and how its steps are dealt out to CTAs. */
typedef struct sm80_gemm_dealing {
    int tile;              /* index of sm80_gemm_tiles */
    int64_t steps_per_cta; /* 0: a tile each */
    int64_t grid, reduce_grid;
    int32_t smem_bytes;
    int64_t workspace_bytes;
} sm80_gemm_dealing;

/* SM80_GEMM_NVFP4, .. from the operands of a product. */
int sm80_gemm_kind(const nk_operand *a, const nk_operand *b);

/* Steps of K in a tile. */
int64_t sm80_gemm_steps(int64_t k, int kind);

/* What the settings ask of a product, as values: a choice that has later launches to deal keeps it, and the text of an
 * environment variable may be gone by then. */
typedef struct sm80_gemm_rules {
    int32_t forced; /* a tile, or NK_TILE_ANY */
    bool batch_invariant, overlap;
} sm80_gemm_rules;
sm80_gemm_rules sm80_gemm_rules_of(const nk_settings *settings);

/* The one that ends first, by the work that each tile would make of it: a pure function of its arguments. */
nk_status sm80_gemm_deal(nk_device device, sm80_gemm_rules rules, int kind,
                         const sm80_gemm_work work[SM80_GEMM_TILE_COUNT], sm80_gemm_dealing *dealing);

/* Fills a plan. */
void sm80_gemm_describe(const sm80_gemm_dealing *dealing, sm80_gemm_rules rules, int kind, int outputs_per_warp,
                        nk_plan *plan);

/* l products of m tokens with n outputs each, `outputs_per_warp` of which take a warp's 32 weight rows. */
typedef struct sm80_product {
    nk_device device;
    int64_t l, m, n, k;
    int kind, outputs_per_warp;
} sm80_product;

/* Of one tile: by kind, and last the one that adds the parts of split tiles. */
typedef cuda_kernel *sm80_gemm_kernels[SM80_GEMM_FP4_KINDS + 1];

/* An operator's plan and run; `kernels` by tile, `problem` is their first parameter. */
typedef struct sm80_gemm_choice {
    cuda_kernel *multiply, *reduce;
    cuda_grid grid, reduce_grid; /* reduce_grid.x is 0 where no tile is split */
    sm80_gemm_scheduler params;  /* all but the workspace's address */
} sm80_gemm_choice;

nk_status sm80_gemm_plan(const sm80_product *p, const nk_settings *settings, const sm80_gemm_kernels *kernels,
                         nk_plan *plan, sm80_gemm_choice *choice);
nk_status sm80_gemm_run(nk_device device, const void *problem, const sm80_gemm_choice *choice, const nk_exec *exec);

#endif
