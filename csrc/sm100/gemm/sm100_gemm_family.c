/* Tiles, tensor maps and launches of sm100's two GEMM families. */
#include "sm100_gemm_family.h"

#include "sm100_list_params.h"

#include <string.h>

_Static_assert(sizeof(sm100_list_params) <= CUDA_MAX_PARAM_BYTES, "a list is one kernel's parameters");
_Static_assert(SM100_LIST_GROUPS == GEMM_MEMBERS, "one launch takes all members of a description");

/* ---------------------------------------------------------------------------------------------------------------- */
/* Operands, by the MMA's side: SM100_GEMM_OPERAND_.. */
/* ---------------------------------------------------------------------------------------------------------------- */

static int sm100_operands(const gemm_desc *d) { return d->up ? SM100_GEMM_OPERANDS : 2; }

static bool sm100_are_tokens(int operand, bool tokens_are_mma_m)
{
    return operand != SM100_GEMM_OPERAND_UP && (operand == SM100_GEMM_OPERAND_M) == tokens_are_mma_m;
}

static const nk_operand *sm100_operand_of(const gemm_desc *d, int operand, bool tokens_are_mma_m)
{
    if (operand == SM100_GEMM_OPERAND_UP) return d->up;
    return sm100_are_tokens(operand, tokens_are_mma_m) ? &d->gemm->a : &d->gemm->b;
}

static int64_t sm100_rows_of(const gemm_desc *d, bool tokens) { return tokens ? gemm_tokens(d) : d->gemm->n; }
static int64_t sm100_batches_of(const gemm_desc *d, bool tokens)
{
    return tokens ? d->gemm->l : gemm_weight_batches(d);
}

/* With batch_invariant, strides must serve any number of rows: a row must not go to another kernel, whose sums have
 * another order, because more rows are there. K of gathered tokens must be a multiple of 16 bytes: the same tokens, if
 * they were contiguous, then have a map, too, and both calls give the same bits. */
bool sm100_has_map(const gemm_desc *d, const nk_operand *o, bool batch_invariant)
{
    const bool tokens = o == &d->gemm->a;
    const int64_t k = d->gemm->k, alignment = o->dtype == NK_E2M1X2 ? 32 : 8; /* 16 bytes */
    if (tokens && gemm_gathers(d) && k % alignment != 0) return false;
    const bool along_k = o->dtype == NK_E2M1X2 || k <= 1 || o->k_stride == 2;
    return along_k && cuda_has_map(o, sm100_rows_of(d, tokens), sm100_batches_of(d, tokens), batch_invariant);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Tiles                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Of one problem, or of one group of a list. */
typedef struct tiling {
    bool tokens_are_mma_m;
    int64_t m_tiles, n_tiles; /* of the MMA's M and N */
    double tiles;             /* of all batches */
} tiling;

static tiling sm100_tiling_of(const gemm_desc *d, const gemm_config *t, bool tokens_are_mma_m)
{
    const nk_gemm_problem *p = d->gemm;
    tiling found = {.tokens_are_mma_m = tokens_are_mma_m};
    found.m_tiles = nk_ceil_div(tokens_are_mma_m ? p->m : p->n, t->tile_n);
    found.n_tiles = tokens_are_mma_m ? nk_ceil_div(p->n, t->tile_m) : gemm_m_tiles(d, t->tile_m);
    found.tiles = (double)p->l * (double)found.m_tiles * (double)found.n_tiles;
    return found;
}

/* Which operand is the MMA's M. In grouped and dual GEMMs, and in batch-invariant calls, weights always are: then the
 * same instructions make a row, whatever else the call holds. Each group of a list takes tokens instead if that makes
 * fewer tiles. A gemm does as `schedule` says (1: tokens). */
static tiling sm100_tiling_of_member(const gemm_desc *one, const gemm_query *q, const gemm_config *t, int32_t schedule)
{
    const sm100_mainloop *mainloop = q->family->mainloop;
    const tiling asked = sm100_tiling_of(one, t, schedule == 1);
    if (one->op != GEMM_LIST || !mainloop->tokens_may_be_mma_m || q->batch_invariant) return asked;
    const tiling swapped = sm100_tiling_of(one, t, true);
    return swapped.tiles < asked.tiles ? swapped : asked;
}

/* With the table of experts. */
static int64_t sm100_smem_bytes(const sm100_mainloop *mainloop, const gemm_desc *d, const gemm_config *t)
{
    return mainloop->resources(d, t).smem_bytes + (d->experts ? SM100_GEMM_EXPERT_BYTES(gemm_experts(d)) : 0);
}

static int64_t sm100_tiles_at_once(const gemm_config *t, const cuda_gpu *gpu)
{
    return gpu->sms < t->cluster ? 1 : gpu->sms / t->cluster;
}

const char *sm100_why_not_config(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    const sm100_mainloop *mainloop = q->family->mainloop;
    const gemm_config *t = &q->family->configs[c->config];
    double tiles = 0;
    if (c->schedule && (!mainloop->tokens_may_be_mma_m || d->op != GEMM || q->batch_invariant)) return gemm_no_schedule;
    for (int i = 0; i < d->count; i++) {
        const gemm_desc one = gemm_member(d, i);
        if (nk_ceil_div(one.gemm->k, t->tile_k) < t->split_k) return "K has fewer K tiles than it is split into";
        tiles += sm100_tiling_of_member(&one, q, t, c->schedule).tiles;
    }
    if (sm100_smem_bytes(mainloop, d, t) > q->gpu->smem_per_cta) return GEMM_NO_SMEM;
    return tiles * t->cluster < GEMM_LARGEST ? NULL : GEMM_TOO_LARGE;
}

/* Of experts those of the rows that they are expected to have; their tokens are never the MMA's M. */
static int64_t sm100_expected_tiles(const gemm_desc *one, const gemm_config *t, const tiling *its)
{
    return one->experts ? its->m_tiles * gemm_expected_m_tiles(one, t->tile_m) : (int64_t)its->tiles;
}

/* Tiles run in waves, and a wave is charged to the member with its first tile, the longest. The fixed part, us(.., 0),
 * is charged once, since all members are one launch. */
double sm100_us(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c)
{
    const sm100_mainloop *mainloop = q->family->mainloop;
    const gemm_config *t = &q->family->configs[c->config];
    const int64_t at_once = sm100_tiles_at_once(t, q->gpu);
    double us = 0;
    int64_t begin = 0;
    for (int i = 0; i < d->count; i++) {
        const gemm_desc one = gemm_member(d, i);
        const tiling its = sm100_tiling_of_member(&one, q, t, c->schedule);
        const int64_t end = begin + sm100_expected_tiles(&one, t, &its),
                      waves = nk_ceil_div(end, at_once) - nk_ceil_div(begin, at_once);
        us += mainloop->us(&one, t, (double)waves) - (i ? mainloop->us(&one, t, 0) : 0);
        begin = end;
    }
    return us;
}

#define LIST_ORDER ": persistent CTAs take their tiles, those of the longest K first"

void sm100_derive(const gemm_desc *d, const gemm_query *q, gemm_launch *c)
{
    const sm100_mainloop *mainloop = q->family->mainloop;
    const gemm_config *t = &q->family->configs[c->config];
    const sm100_resources resources = mainloop->resources(d, t);
    const int64_t at_once = sm100_tiles_at_once(t, q->gpu);
    double tiles = 0;
    int32_t tokens_as_m = 0; /* a bit for each member whose tokens are the MMA's M */
    for (int i = 0; i < d->count; i++) {
        const gemm_desc one = gemm_member(d, i);
        const tiling its = sm100_tiling_of_member(&one, q, t, c->schedule);
        tokens_as_m |= (int32_t)((uint32_t)its.tokens_are_mma_m << i);
        tiles += its.tiles;
    }
    nk_plan *plan = &c->plan;
    c->schedule = tokens_as_m;
    if (tokens_as_m & 1) {
        plan->tile_m = t->tile_n;
        plan->tile_n = t->tile_m;
    }
    plan->grid =
        t->cluster * (tiles < (double)at_once || SM100_GEMM_IS_DYNAMIC(t->multicast) ? (int64_t)tiles : at_once);
    plan->threads = resources.threads;
    plan->stages = resources.stages;
    c->smem_bytes = (int32_t)sm100_smem_bytes(mainloop, d, t);
    plan->why = d->op != GEMM_LIST ? mainloop->why(d, tokens_as_m & 1)
                : d->is_partial    ? "a launch for each 32 groups" LIST_ORDER "; this is the first one's"
                                   : "one launch for all groups" LIST_ORDER;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Launch                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Whether scale factors are atoms that bulk copies can take as they are, without padding along K. */
static bool sm100_have_whole_atoms(const gemm_desc *d, const nk_operand *o, bool tokens)
{
    return o->sf_layout == NK_SF_BLOCKED && d->gemm->k % SM100_GEMM_MMA_K == 0 &&
           cuda_are_sf_aligned(o, 1, sm100_batches_of(d, tokens), 16);
}

/* The up matrix begins inside an atom if N is no multiple of 128: so many gate rows lie before it there. */
static int32_t sm100_up_row_in_atom(const gemm_desc *d)
{
    const bool blocked = d->op == GEMM_GROUPED_DUAL && d->up->sf_layout == NK_SF_BLOCKED;
    return blocked ? (int32_t)(d->gemm->n % NK_SF_ATOM_ROWS) : 0;
}

static sm100_gemm_params sm100_params_of(bool copies_sf, const gemm_desc *d, const gemm_config *t,
                                         bool tokens_are_mma_m)
{
    const tiling its = sm100_tiling_of(d, t, tokens_are_mma_m);
    sm100_gemm_params s = {.tokens_are_mma_m = tokens_are_mma_m,
                           .mma_m_tiles = (int32_t)its.m_tiles,
                           .mma_n_tiles = (int32_t)its.n_tiles,
                           .tiles = (int32_t)its.tiles,
                           .k_steps = (int32_t)nk_ceil_div(d->gemm->k, t->tile_k),
                           .up_row_in_atom = sm100_up_row_in_atom(d),
                           .activation = d->activation ? (uint8_t)d->activation->kind : 0};
    for (int i = 0; i < sm100_operands(d); i++) {
        const nk_operand *o = sm100_operand_of(d, i, tokens_are_mma_m);
        const bool tokens = sm100_are_tokens(i, tokens_are_mma_m);
        s.sf_by_bulk_copy[i] = copies_sf && sm100_have_whole_atoms(d, o, tokens) && !(tokens && gemm_gathers(d)) &&
                               !(i == SM100_GEMM_OPERAND_UP && s.up_row_in_atom);
        s.one_matrix[i] = (d->experts && tokens) || o->batch_stride == 0;
    }
    return s;
}

/* The boxes of one operand. A row of gathered tokens is a box of its own. */
static cuda_boxes sm100_boxes_of(const gemm_desc *d, const gemm_config *t, const sm100_gemm_params *s, int operand)
{
    const nk_operand *o = sm100_operand_of(d, operand, s->tokens_are_mma_m);
    const bool tokens = sm100_are_tokens(operand, s->tokens_are_mma_m), gathers = tokens && gemm_gathers(d);
    const int32_t rows =
        operand == SM100_GEMM_OPERAND_N ? t->tile_m / t->ctas_per_mma / t->multicast : SM100_GEMM_CTA_M;
    const int64_t batches = s->one_matrix[operand] ? 1 : sm100_batches_of(d, tokens);
    const int32_t swizzled = o->dtype == NK_E2M1X2 ? t->tile_k : 64; /* of 16-bit elements 128 bytes */
    return cuda_k_major_boxes(o, tokens ? "tokens" : "weights", d->gemm->k, sm100_rows_of(d, tokens),
                              gathers ? 0 : batches, swizzled, gathers ? 1 : rows);
}

/* Scale factors of gathered tokens belong to tokens that exist, and linear ones need no atoms: then nothing limits atom
 * rows. */
static sm100_gemm_experts sm100_experts_of(const nk_grouped_gemm_problem *p)
{
    const int64_t row_bytes = nk_ceil_div(p->all.k, NK_SF_VEC * NK_SF_ATOM_COLS) * NK_SF_ATOM_BYTES;
    const bool unlimited = p->all.a.sf_layout == NK_SF_LINEAR || p->rows.data || row_bytes == 0;
    return (sm100_gemm_experts){p->offsets, p->groups, unlimited ? INT64_MAX : p->a_sf_bytes / row_bytes, p->rows};
}

/* Gated experts are one dual_gemm for the kernels: B2 is the same matrices, N rows or one row further. */
static nk_dual_gemm_problem sm100_dual_of(const gemm_gated *g)
{
    return (nk_dual_gemm_problem){.device = g->device,
                                  .l = 1,
                                  .m = g->m,
                                  .n = g->n,
                                  .k = g->k,
                                  .a = g->a,
                                  .b1 = g->b1,
                                  .b2 = g->b2,
                                  .d = g->d,
                                  .alpha1 = g->alpha1,
                                  .alpha2 = g->alpha2,
                                  .bias1 = g->bias1,
                                  .bias2 = g->bias2,
                                  .activation = g->activation,
                                  .row_scale = g->row_scale};
}

static nk_status sm100_launch_one(const gemm_desc *d, const gemm_launch *c, const nk_exec *exec)
{
    const sm100_mainloop *mainloop = c->family->mainloop;
    const gemm_config *t = &c->family->configs[c->config];
    const int count = sm100_operands(d);
    sm100_gemm_params params = sm100_params_of(mainloop->copies_sf, d, t, c->schedule);
    cuda_tensor_map maps[SM100_GEMM_OPERANDS], *to[SM100_GEMM_OPERANDS];
    cuda_boxes boxes[SM100_GEMM_OPERANDS];
    nk_dual_gemm_problem dual;
    sm100_gemm_experts experts = {0};
    void *args[SM100_GEMM_OPERANDS + 3]; /* maps, the problem, the parameters and, if there are any, experts */
    if (d->experts) experts = sm100_experts_of(d->experts);
    for (int operand = 0; operand < count; operand++) {
        boxes[operand] = sm100_boxes_of(d, t, &params, operand);
        args[operand] = to[operand] = &maps[operand];
    }
    args[count] = (void *)(uintptr_t)d->params;
    args[count + 1] = &params;
    args[count + 2] = &experts;
    if (d->gated) {
        dual = sm100_dual_of(d->gated);
        args[count] = &dual;
    }
    NK_TRY(cuda_encode_maps(d->gemm->device, count, boxes, to));
    return gemm_launch_kernel(d, c, args, exec);
}

/* An operand's scale factors come by bulk copy only if those of every group can. Barriers are initialised once, for the
 * scale-factor warps to arrive in each phase or in none; and no bytes of a stage are written by threads for one tile
 * and by copies for another, which would take a proxy fence. */
static nk_status sm100_launch_list(const gemm_desc *d, const gemm_launch *c, const nk_exec *exec)
{
    const sm100_mainloop *mainloop = c->family->mainloop;
    const gemm_config *t = &c->family->configs[c->config];
    cuda_boxes boxes[2 * GEMM_MEMBERS];
    cuda_tensor_map *to[2 * GEMM_MEMBERS];
    sm100_list_params list = {.count = d->count};
    sm100_gemm_params *all = &list.params;
    *all = (sm100_gemm_params){.sf_by_bulk_copy = {true, true, true}};
    for (int i = 0; i < d->count; i++) {
        const gemm_desc one = gemm_member(d, i);
        sm100_list_group *g = &list.group[i];
        g->gemm = *one.gemm;
        g->params = sm100_params_of(mainloop->copies_sf, &one, t, c->schedule >> i & 1);
        g->first_tile = all->tiles;
        all->tiles += g->params.tiles;
        to[2 * i] = &g->map_m;
        to[2 * i + 1] = &g->map_n;
        for (int operand = 0; operand <= SM100_GEMM_OPERAND_N; operand++) {
            boxes[2 * i + operand] = sm100_boxes_of(&one, t, &g->params, operand);
            all->sf_by_bulk_copy[operand] = all->sf_by_bulk_copy[operand] && g->params.sf_by_bulk_copy[operand];
        }
    }
    for (int i = 0; i < d->count; i++)
        memcpy(list.group[i].params.sf_by_bulk_copy, all->sf_by_bulk_copy, sizeof all->sf_by_bulk_copy);
    NK_TRY(cuda_encode_maps(d->gemm->device, 2 * d->count, boxes, to));
    return gemm_launch_kernel(d, c, (void *[]){&list}, exec);
}

nk_status sm100_launch(const gemm_desc *d, const gemm_launch *c, const nk_exec *exec)
{
    return (d->op == GEMM_LIST ? sm100_launch_list : sm100_launch_one)(d, c, exec);
}
