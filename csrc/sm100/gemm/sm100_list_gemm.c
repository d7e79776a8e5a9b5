/* Lists of groups on Blackwell: launches of up to 32 of them, whose tiles CTAs walk over. */
#include "nk_memo.h"
#include "sm100/kind_f16/sm100_kind_f16.h"
#include "sm100_list_params.h"

_Static_assert(sizeof(sm100_list_params) <= CUDA_MAX_PARAM_BYTES, "a list is one kernel's parameters");

#define KERNEL(name, ...) [SM100_GEMM_##name] = &sm100_list_gemm_##name,
static cuda_kernel *const kernels[SM100_GEMM_TILE_COUNT] = {SM100_GEMM_GROUPED_TILES(KERNEL)};

static const sm100_list_family of_codes = {.family = &sm100_gemm_family,
                                           .kernels = kernels,
                                           .tiles = SM100_GEMM_TILE_COUNT,
                                           .invariant = SM100_GEMM_n64,
                                           .either_on_lanes = true,
                                           .why_no_tile = sm100_gemm_why_no_tile,
                                           .why_not_tile = sm100_gemm_why_not_tile,
                                           .candidate_of = sm100_gemm_candidate_of,
                                           .us = sm100_gemm_us,
                                           .ctas = sm100_gemm_ctas,
                                           .describe = sm100_gemm_describe,
                                           .work_of = sm100_gemm_scheduler_of,
                                           .boxes_of = sm100_gemm_boxes_of,
                                           .grid_of = sm100_gemm_grid_of};

/* ---------------------------------------------------------------------------------------------------------------- */
/* Plan                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The groups of a launch: none is empty. Those of the longest K come first, since their tiles take longest. */
typedef struct members {
    const sm100_list_family *family;
    int32_t count;
    const nk_gemm_problem *group[SM100_LIST_GROUPS];
} members;

static bool is_empty(const nk_gemm_problem *group) { return group->m == 0 || group->n == 0; }

/* All groups' tokens are of one type. */
static const sm100_list_family *family_of(const nk_grouped_gemm_problem *p)
{
    return p->groups > 0 && p->list[0].a.dtype != NK_E2M1X2 ? &sm100_kind_f16_list : &of_codes;
}

/* Those of a list from *at on, which becomes where the next launch's begin. */
static members members_of(const nk_grouped_gemm_problem *p, int64_t *at)
{
    members found = {.family = family_of(p)};
    for (; *at < p->groups && found.count < SM100_LIST_GROUPS; ++*at) {
        const nk_gemm_problem *group = &p->list[*at];
        if (is_empty(group)) continue;
        int i = found.count++;
        for (; i > 0 && found.group[i - 1]->k < group->k; i--)
            found.group[i] = found.group[i - 1];
        found.group[i] = group;
    }
    return found;
}

static sm100_gemm_product product_of(const nk_gemm_problem *group)
{
    return (sm100_gemm_product){.first = group, .problem = group};
}

/* What is asked of a launch, as whole words: a memo compares them. */
typedef struct question {
    const sm100_list_family *family;
    const cuda_gpu *gpu;
    int32_t count, forced, batch_invariant, unused;
    struct {
        int32_t m, n, k;
    } group[SM100_LIST_GROUPS];
} question;

typedef struct arrangement {
    int32_t tile; /* of all groups, or NK_TILE_ANY: none can */
    const char *why_not;
    double us, tiles;
    bool tokens_are_mma_m[SM100_LIST_GROUPS];
} arrangement;

static question question_of(const members *m, const cuda_gpu *gpu, const sm100_list_choice *c)
{
    question q = {
        .family = m->family, .gpu = gpu, .count = m->count, .forced = c->forced, .batch_invariant = c->batch_invariant};
    for (int i = 0; i < m->count; i++) {
        q.group[i].m = (int32_t)m->group[i]->m;
        q.group[i].n = (int32_t)m->group[i]->n;
        q.group[i].k = (int32_t)m->group[i]->k;
    }
    return q;
}

/* Each group has the operand on the lanes that makes fewer tiles. A wave takes as long as its first tile. */
static arrangement arrange(const members *m, const question *q, int tile)
{
    const sm100_list_family *f = m->family;
    arrangement a = {.tile = tile};
    for (int i = 0; i < m->count; i++) {
        const sm100_gemm_product product = product_of(m->group[i]);
        sm100_gemm_candidate c = f->candidate_of(&product, q->gpu, tile, false);
        if (f->either_on_lanes && !q->batch_invariant) {
            const sm100_gemm_candidate other = f->candidate_of(&product, q->gpu, tile, true);
            a.tokens_are_mma_m[i] = other.tiles < c.tiles;
            if (a.tokens_are_mma_m[i]) c = other;
        }
        a.why_not = f->why_not_tile(&product, f->kernels, q->gpu, &c);
        if (!a.why_not && a.tiles + c.tiles >= SM100_GEMM_LARGEST) a.why_not = "there are too many tiles";
        if (a.why_not) return a;
        const int64_t begin = (int64_t)a.tiles, end = (int64_t)(a.tiles += c.tiles);
        const int64_t waves = nk_ceil_div(end, c.at_once) - nk_ceil_div(begin, c.at_once);
        const double ends = f->us(&product, tile, 0);
        a.us += f->us(&product, tile, (double)waves) - (i ? ends : 0);
    }
    return a;
}

/* With batch_invariant the tile is one, as for a gemm. */
static arrangement fastest_of(const members *m, const question *q)
{
    const bool is_free = q->forced == NK_TILE_ANY;
    const int32_t only = is_free && q->batch_invariant ? m->family->invariant : q->forced;
    arrangement best = {.tile = NK_TILE_ANY};
    for (int tile = 0; tile < m->family->tiles; tile++) {
        if (only != NK_TILE_ANY && tile != only) continue;
        const arrangement a = arrange(m, q, tile);
        if (a.why_not)
            best.why_not = a.why_not;
        else if (best.tile == NK_TILE_ANY || a.us < best.us)
            best = a;
    }
    return best;
}

/* The answer of this thread's memo. */
static const arrangement *remembered(const members *m, const cuda_gpu *gpu, const sm100_list_choice *c)
{
    NK_MEMO(question, arrangement, memo);
    const question q = question_of(m, gpu, c);
    const size_t at = nk_memo_slot(&q, sizeof q);
    if (memcmp(&memo[at].asked, &q, sizeof q) != 0) {
        memo[at].answer = fastest_of(m, &q);
        memo[at].asked = q;
    }
    return &memo[at].answer;
}

static const char *why_no_tile(const nk_grouped_gemm_problem *p, bool batch_invariant)
{
    bool any = false;
    for (int64_t g = 0; g < p->groups; g++) {
        if (is_empty(&p->list[g])) continue;
        if (p->list[g].b.dtype != NK_E2M1X2) return "the weights are not NVFP4";
        const sm100_gemm_product product = product_of(&p->list[g]);
        const char *why = family_of(p)->why_no_tile(&product, batch_invariant);
        if (why) return why;
        any = true;
    }
    return any ? NULL : "no group has anything to multiply";
}

/* Why some launch has no tile, or NULL, and a description of the first one. */
static const char *plan_launches(const nk_grouped_gemm_problem *p, const cuda_gpu *gpu, const nk_settings *settings,
                                 const sm100_list_choice *c, nk_plan *plan)
{
    int64_t at = 0;
    for (members m = members_of(p, &at); m.count > 0; m = members_of(p, &at)) {
        const arrangement *a = remembered(&m, gpu, c);
        if (a->tile == NK_TILE_ANY) return a->why_not;
        if (plan->kernel) continue;
        const sm100_gemm_product product = product_of(m.group[0]);
        const sm100_list_family *f = m.family;
        const sm100_gemm_candidate first = f->candidate_of(&product, gpu, a->tile, a->tokens_are_mma_m[0]);
        f->describe(&product, settings, f->kernels[a->tile], &first, a->tiles, plan);
        plan->why = at == p->groups
                        ? "one launch for all groups: CTAs walk over their tiles, those of the longest K first"
                        : "a launch for each 32 groups: CTAs walk over their tiles, those of the longest K first; this "
                          "is the first one's";
    }
    return NULL;
}

nk_status sm100_list_plan(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                          sm100_list_choice *c)
{
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const nk_family *family = family_of(p)->family;
    *c = (sm100_list_choice){.forced = nk_tile_forced(settings, family),
                             .batch_invariant = settings->batch_invariant,
                             .overlap = settings->pdl != NK_PDL_OFF};
    const char *why = why_no_tile(p, c->batch_invariant);
    nk_plan first = *plan;
    if (!why) why = plan_launches(p, gpu, settings, c, &first);
    if (why && c->forced != NK_TILE_ANY) return NK_TILE_REFUSE(family, c->forced, "%s", why);
    if (why) return nk_decline(plan, why);
    *plan = first;
    return NK_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Run                                                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Scale factors are copied where those of every group can be: what lanes store, and what copies bring, never lies in
 * the same bytes. */
static nk_status fill(const members *m, const cuda_gpu *gpu, const arrangement *a, sm100_list_params *list)
{
    cuda_boxes boxes[2 * SM100_LIST_GROUPS];
    cuda_tensor_map *to[2 * SM100_LIST_GROUPS];
    sm100_gemm_scheduler *all = &list->scheduler;
    list->count = m->count;
    *all = (sm100_gemm_scheduler){.sf_by_bulk_copy = {true, true, true}};
    for (int i = 0; i < m->count; i++) {
        sm100_list_group *g = &list->group[i];
        const sm100_gemm_product product = product_of(m->group[i]);
        const sm100_gemm_candidate c = m->family->candidate_of(&product, gpu, a->tile, a->tokens_are_mma_m[i]);
        g->gemm = *m->group[i];
        g->scheduler = m->family->work_of(&product, &c);
        g->first_tile = all->tiles;
        all->tiles += g->scheduler.tiles;
        to[2 * i] = &g->map_m;
        to[2 * i + 1] = &g->map_n;
        for (int of = 0; of <= SM100_GEMM_OPERAND_N; of++) {
            boxes[2 * i + of] = m->family->boxes_of(&product, a->tile, &g->scheduler, of);
            all->sf_by_bulk_copy[of] = all->sf_by_bulk_copy[of] && g->scheduler.sf_by_bulk_copy[of];
        }
    }
    for (int i = 0; i < m->count; i++)
        memcpy(list->group[i].scheduler.sf_by_bulk_copy, all->sf_by_bulk_copy, sizeof all->sf_by_bulk_copy);
    return cuda_encode_maps(m->group[0]->device, 2 * m->count, boxes, to);
}

static nk_status launch(const members *m, const cuda_gpu *gpu, const sm100_list_choice *choice, const nk_exec *exec)
{
    const arrangement *a = remembered(m, gpu, choice);
    const sm100_gemm_product product = product_of(m->group[0]);
    const sm100_list_family *f = m->family;
    const sm100_gemm_candidate first = f->candidate_of(&product, gpu, a->tile, a->tokens_are_mma_m[0]);
    const cuda_grid grid = f->grid_of(&product, a->tile, f->ctas(&first, a->tiles), choice->overlap);
    sm100_list_params list;
    NK_TRY(fill(m, gpu, a, &list));
    return cuda_launch(f->kernels[a->tile], product.first->device, exec->stream, &grid, (void *[]){&list});
}

nk_status sm100_list_run(const nk_grouped_gemm_problem *p, const sm100_list_choice *c, const nk_exec *exec)
{
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    int64_t at = 0;
    for (members m = members_of(p, &at); m.count > 0; m = members_of(p, &at))
        NK_TRY(launch(&m, gpu, c, exec));
    return NK_OK;
}
