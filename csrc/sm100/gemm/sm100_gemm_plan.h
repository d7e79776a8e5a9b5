/* What a tile of the sm100 GEMM family makes of a product, and its launch. */
#ifndef NK_SM100_GEMM_PLAN_H
#define NK_SM100_GEMM_PLAN_H

#include "cuda/cuda_encode.h"
#include "sm100/sm100_backend.h"

#include "sm100_gemm_config.h"

/* What the family multiplies: for dual_gemm `first` is the product with b1, and `ups` is b2; for experts it has the
 * tokens of all of them. */
typedef struct sm100_gemm_product {
    const nk_gemm_problem *first;
    const nk_operand *ups; /* or NULL */
    const void *problem;   /* what the kernel takes */
    bool has_experts;
    sm100_gemm_experts experts; /* as the kernel takes them */
    int32_t up_row_in_atom;     /* see sm100_gemm_scheduler */
} sm100_gemm_product;

typedef struct sm100_gemm_choice {
    cuda_kernel *kernel;
    int32_t tile, grid;
    bool overlap;
    double us; /* that the model of its costs says */
    sm100_gemm_scheduler work;
} sm100_gemm_choice;

sm100_gemm_experts sm100_gemm_experts_of(const nk_grouped_gemm_problem *p);

/* A tile, and which operand is its lanes. */
typedef struct sm100_gemm_candidate {
    int tile;
    bool tokens_are_mma_m;
    int64_t mma_m_tiles, mma_n_tiles;
    int32_t at_once; /* tiles that the GPU has SMs for */
    double tiles, us;
} sm100_gemm_candidate;

#define SM100_GEMM_LARGEST (1 << 30) /* extent, or number of tiles: tensor maps and kernels count in 32 bits */

/* Why no tile can serve the product, or NULL; why this one cannot, where others may. */
const char *sm100_gemm_why_no_tile(const sm100_gemm_product *product, bool batch_invariant);
const char *sm100_gemm_why_not_tile(const sm100_gemm_product *product,
                                    cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT], const cuda_gpu *gpu,
                                    const sm100_gemm_candidate *c);

sm100_gemm_candidate sm100_gemm_candidate_of(const sm100_gemm_product *product, const cuda_gpu *gpu, int tile,
                                             bool tokens_are_mma_m);

/* Microseconds of a launch in which each CTA has so many tiles. */
double sm100_gemm_us(const sm100_gemm_product *product, int tile, double waves);

/* Of a launch of `count` tiles. */
int32_t sm100_gemm_ctas(const sm100_gemm_candidate *c, double count);
void sm100_gemm_describe(const sm100_gemm_product *product, const nk_settings *settings, const cuda_kernel *kernel,
                         const sm100_gemm_candidate *c, double count, nk_plan *plan);

sm100_gemm_scheduler sm100_gemm_scheduler_of(const sm100_gemm_product *product, const sm100_gemm_candidate *c);
cuda_boxes sm100_gemm_boxes_of(const sm100_gemm_product *product, int tile, const sm100_gemm_scheduler *work, int of);
cuda_grid sm100_gemm_grid_of(const sm100_gemm_product *product, int tile, int32_t ctas, bool overlap);

/* `kernels`: of each tile. */
nk_status sm100_gemm_plan(const sm100_gemm_product *product, const nk_settings *settings,
                          cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT], nk_plan *plan, sm100_gemm_choice *choice);
nk_status sm100_gemm_run(const sm100_gemm_product *product, const sm100_gemm_choice *choice, const nk_exec *exec);

#endif
