/* The sm90 GEMM family as its lists of groups and the row use it. */
#ifndef NK_SM90_GEMM_FAMILY_H
#define NK_SM90_GEMM_FAMILY_H

#include "cuda/cuda_encode.h"
#include "gemm/gemm_family.h"
#include "sm90/sm90_backend.h"

#include "sm90_gemm_config.h"
#include "sm90_gemm_costs.h"

extern const gemm_family sm90_gemm, sm90_kind_f16;

/* K steps of a tile's stage. */
static inline int32_t sm90_gemm_steps(const gemm_config *t) { return t->tile_k / SM90_GEMM_STEP; }

static inline int32_t sm90_gemm_threads(const gemm_config *t)
{
    const int32_t groups = t->warpgroups * 64 / t->tile_n;
    return SM90_GEMM_THREADS(t->tile_m, t->tile_n, groups, t->natural_k);
}

/* Shared memory of a CTA, without the list of experts. */
static inline int32_t sm90_gemm_tile_smem(const gemm_config *t, int32_t matrices)
{
    return SM90_GEMM_SMEM(t->tile_m, t->tile_n, t->cluster, t->stages, sm90_gemm_steps(t), matrices);
}

/* Bytes of workspace that one row of 16-bit tokens takes: K rounded up to steps. */
static inline int64_t sm90_gemm_row_bytes(int64_t k) { return nk_ceil_div(k, SM90_GEMM_STEP) * SM90_GEMM_STEP * 2; }

#define SM90_GEMM_MOST_WORKSPACE (256 << 20)

/* Why the family cannot serve one problem. */
const char *sm90_gemm_why_not(const gemm_desc *d, const gemm_query *q);
const char *sm90_gemm_why_not_config(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c);

/* Microseconds: of a K step of a CTA, and of a launch. */
double sm90_gemm_step_us(const gemm_config *t, double tile_m, bool lanes_copy);
double sm90_gemm_us(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c);

/* Whether lanes copy the weights' scale factors, as costs take it, which know sizes and layouts alone. Of two matrices
 * they always do, though tiles of 192 rows load whole blocked atoms; but with 256 rows of experts atoms are whole, and
 * rows of linear ones have boxes, if N and K allow that. */
static inline bool sm90_gemm_lanes_copy(const gemm_desc *d, const gemm_config *t)
{
    const bool is_linear = d->gemm->b.sf_layout == NK_SF_LINEAR;
    if (!d->experts || t->tile_n != 256) return d->up || is_linear;
    if (is_linear) return d->gemm->k / NK_SF_VEC % SM90_GEMM_SF_BOX_BYTES != 0;
    return d->up && d->gemm->n % NK_SF_ATOM_ROWS != 0;
}

sm90_gemm_params sm90_gemm_params_of(const gemm_desc *d, const gemm_config *t);

/* What tensor maps say of weights, and of tokens in the workspace: `rows` in all, of batches that are batch_rows apart.
 */
cuda_boxes sm90_gemm_weight_boxes(const gemm_desc *d, const gemm_config *t, const char *name, const nk_operand *b);
cuda_boxes sm90_gemm_token_boxes(const sm90_prepared_a *tokens, const gemm_config *t, int64_t rows, int64_t batch_rows,
                                 int64_t batches, int32_t tile_m);

/* Lists of groups: what the family says of one launch. */
#define SM90_LIST_SCHEDULES 9 /* the largest tile_m of the launch, by its number; the last: a gemm for each group */
cuda_kernel *sm90_list_kernel_of(const gemm_desc *d, int config);
bool sm90_list_has_schedule(const gemm_candidate *c);
double sm90_list_us(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c);
void sm90_list_derive(const gemm_desc *d, const gemm_query *q, gemm_launch *c);
nk_status sm90_list_launch(const gemm_desc *d, const gemm_launch *c, const nk_exec *exec);
nk_status sm90_plan_list(const gemm_row *row, const gemm_desc *d, const nk_settings *settings, nk_plan *plan,
                         void *choice);
nk_status sm90_run_list(const gemm_row *row, const gemm_desc *d, const void *choice, const nk_exec *exec);

#endif
