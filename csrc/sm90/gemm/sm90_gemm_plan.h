/* What a tile of the sm90 GEMM family makes of a problem: pure functions of its sizes, its addresses and the GPU. */
#ifndef NK_SM90_GEMM_PLAN_H
#define NK_SM90_GEMM_PLAN_H

#include "cuda/cuda_encode.h"
#include "sm90/sm90_backend.h"

#include "sm90_gemm_config.h"

typedef struct sm90_gemm_shape {
    int32_t tokens, rows, parts, cluster, slots, steps; /* see SM90_GEMM_TILES */
    int32_t threads, smem_bytes[2];                     /* of one matrix of weights, and of two */
} sm90_gemm_shape;

extern const sm90_gemm_shape sm90_gemm_shapes[SM90_GEMM_TILE_COUNT];

/* Of a tile's K. */
static inline int32_t sm90_gemm_divisions(const sm90_gemm_shape *t)
{
    return t->parts * t->cluster * SM90_GEMM_STAGE_N(t->rows) / t->rows;
}

/* Whether CTAs walk over tiles, as many as there are SMs, since no K is divided. */
static inline bool sm90_gemm_walks(const sm90_gemm_shape *t) { return sm90_gemm_divisions(t) == 1; }

#define SM90_GEMM_MOST_WORKSPACE (256 << 20)
#define SM90_GEMM_SLICE_ROWS 256 /* slices begin at multiples of it: whole tiles, and whole atoms of scale factors */

/* Tokens that want more workspace are multiplied in slices, one after the other: of rows, or of batches. */
typedef struct sm90_gemm_slices {
    int64_t rows, batches; /* of a slice */
} sm90_gemm_slices;
sm90_gemm_slices sm90_gemm_slices_of(const nk_gemm_problem *p);

/* Whether tensor maps can begin at every slice: those of the first one are checked, others begin at other batches. */
bool sm90_gemm_slices_are_aligned(const nk_gemm_problem *p, const nk_operand *ups);

/* To what begins at this batch, and at this row. */
void sm90_gemm_move_weights(nk_operand *b, int64_t batch);
void sm90_gemm_move_tokens(nk_operand *a, nk_output *d, int64_t k, int64_t batch, int64_t row);

/* What the family multiplies: for dual_gemm and grouped_dual_gemm `first` is the product with the gates, b1, and `ups`
 * is b2; for experts it has the tokens of all. */
typedef struct sm90_gemm_product {
    const nk_gemm_problem *first;
    const nk_operand *ups;  /* or NULL */
    const void *problem;    /* what the kernel takes */
    const int32_t *offsets; /* of the tokens of `experts` experts, or NULL */
    int64_t experts, token_sf_bytes;
    nk_token_rows rows; /* of experts: which token a row of the result is made of */
    int64_t tiles;      /* a bit for each that the operator has kernels of, or 0: of all that can serve it */
} sm90_gemm_product;

/* Of the output, in a slot and in a tile. */
static inline int32_t sm90_gemm_slot_features(const sm90_gemm_product *p, const sm90_gemm_shape *t)
{
    return SM90_GEMM_STAGE_N(t->rows) / (p->ups ? 2 : 1);
}
static inline int32_t sm90_gemm_features(const sm90_gemm_product *p, const sm90_gemm_shape *t)
{
    return t->rows / (p->ups ? 2 : 1);
}

/* Rows of zeros behind the tokens, so that no tile's box of tokens ends behind all rows: such boxes come late. */
int64_t sm90_gemm_spare_rows(const sm90_gemm_product *p, const sm90_gemm_shape *t);

/* Tokens with 16 bits an element, K rounded up to steps, and the spare rows. */
int64_t sm90_gemm_workspace_bytes(const sm90_gemm_product *p, const sm90_gemm_shape *t);

/* Of a CTA. */
int32_t sm90_gemm_smem_bytes(const sm90_gemm_product *p, const sm90_gemm_shape *t);

/* Whether all batches, or experts, have the same weights. */
bool sm90_gemm_has_one_matrix(const sm90_gemm_product *p);

/* Matrices of weights. */
int64_t sm90_gemm_batches(const sm90_gemm_product *p);

/* Of a tile, for fp16 tokens (NVFP4 ones become fp16) and for bf16. */
typedef cuda_kernel *sm90_gemm_kernels[2];

typedef struct sm90_gemm_choice {
    cuda_kernel *first, *product;
    int32_t tile, sms;
    nk_pdl pdl;
} sm90_gemm_choice;

/* Why this tile cannot serve the product, or NULL. */
const char *sm90_gemm_why_not(const sm90_gemm_product *p, const cuda_gpu *gpu, bool batch_invariant, int tile);

/* The fastest tile. */
typedef struct sm90_gemm_pick {
    int tile;  /* NK_TILE_ANY: none can serve the product, and `why_not` says for which reason */
    double us; /* with the first kernel */
    const char *why_not;
} sm90_gemm_pick;

/* A pure function of the product, of the GPU and the setting. */
sm90_gemm_pick sm90_gemm_pick_of(const sm90_gemm_product *p, const cuda_gpu *gpu, bool batch_invariant);

nk_status sm90_gemm_plan_picked(const sm90_gemm_product *p, const nk_settings *settings,
                                const sm90_gemm_kernels kernels[SM90_GEMM_TILE_COUNT], const sm90_gemm_pick *pick,
                                nk_plan *plan, sm90_gemm_choice *choice);

/* What tensor maps say of weights, and of tokens in the workspace: `rows` in all, of batches that are batch_rows apart,
 * in boxes of `tokens` and a slot's steps. */
cuda_boxes sm90_gemm_weight_boxes(const sm90_gemm_product *p, const sm90_gemm_shape *t, const char *name,
                                  const nk_operand *b);
cuda_boxes sm90_gemm_token_boxes(const sm90_prepared_a *x, int64_t rows, int64_t batch_rows, int64_t batches,
                                 int32_t tokens, int32_t steps);

sm90_gemm_scheduler sm90_gemm_scheduler_of(const sm90_gemm_product *p, int tile);

nk_status sm90_gemm_plan(const sm90_gemm_product *product, const nk_settings *settings,
                         const sm90_gemm_kernels kernels[SM90_GEMM_TILE_COUNT], int tile, nk_plan *plan,
                         sm90_gemm_choice *choice);
nk_status sm90_gemm_run(const sm90_gemm_product *product, const sm90_gemm_choice *choice, const nk_exec *exec);

#endif
