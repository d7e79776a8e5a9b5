/* A list of groups by one launch: which tiles each group has, and both launches. */
#include "cuda/cuda_encode.h"
#include "nk_memo.h"
#include "sm90_list_model.h"

_Static_assert(sizeof(sm90_list) <= CUDA_MAX_PARAM_BYTES, "a list is one kernel's parameters");

#define APART(reason) "a gemm for each group, one after the other: " reason "; this is the first one's"

/* Of a tile of the family that lists have. */
typedef struct list_tile {
    cuda_kernel *kernels[2]; /* for fp16 tokens, which NVFP4 ones become, and for bf16 */
    int32_t tile;
    int32_t widths[SM90_LIST_MAX_TILE_MS]; /* 0 after the last */
} list_tile;

static const list_tile list_tiles[] = {
#define TILE(name, ...) \
    {{&sm90_list_gemm_##name##_fp16, &sm90_list_gemm_##name##_bf16}, SM90_GEMM_##name, {__VA_ARGS__}},
    SM90_LIST_PIPELINES(TILE)
#undef TILE
};

enum { LIST_TILES = sizeof list_tiles / sizeof *list_tiles };

static const list_tile *list_tile_of(int32_t tile)
{
    int i = 0;
    while (list_tiles[i].tile != tile)
        i++;
    return &list_tiles[i];
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Plan                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Each group has as few tiles of tokens as widths up to `most` allow, and the least width for so many. */
static sm90_list_arrangement arrange(const sm90_list_sizes *s, const list_tile *t, int most)
{
    sm90_list_arrangement a = {.tile = t->tile};
    double us[SM90_LIST_MAX_GROUPS];
    for (int i = 0; i < s->count; i++) {
        const int64_t m = s->group[i].m, count = nk_ceil_div(m, t->widths[most]);
        sm90_list_member member = {.group = i};
        while (count * t->widths[member.width] < m)
            member.width++;
        member.tokens = t->widths[member.width];
        const double of_tile = sm90_list_tile_us(s, t->tile, &member);
        int at = i;
        for (; at > 0 && us[at - 1] < of_tile; at--) {
            us[at] = us[at - 1];
            a.member[at] = a.member[at - 1];
        }
        us[at] = of_tile;
        a.member[at] = member;
    }
    a.us = sm90_list_us(s, &a);
    return a;
}

static sm90_list_arrangement fastest_of(const sm90_list_sizes *s)
{
    sm90_list_arrangement best = {0};
    for (int i = 0; i < LIST_TILES; i++) {
        for (int most = 0; most < SM90_LIST_MAX_TILE_MS && list_tiles[i].widths[most]; most++) {
            const sm90_list_arrangement a = arrange(s, &list_tiles[i], most);
            if (best.us == 0 || a.us < best.us) best = a;
        }
    }
    if (sm90_list_apart_us(s) < best.us) best.tile = NK_TILE_ANY;
    return best;
}

/* The answer of this thread's memo. */
static const sm90_list_arrangement *remembered(const sm90_list_sizes *sizes)
{
    NK_MEMO(sm90_list_sizes, sm90_list_arrangement, memo);
    const size_t at = nk_memo_slot(sizes, sizeof *sizes);
    if (memcmp(&memo[at].asked, sizes, sizeof *sizes) != 0) {
        memo[at].answer = fastest_of(sizes);
        memo[at].asked = *sizes;
    }
    return &memo[at].answer;
}

static bool is_alike(const nk_gemm_problem *p, const nk_gemm_problem *first)
{
    return p->a.dtype == first->a.dtype && p->b.sf_layout == first->b.sf_layout;
}

/* Sizes of the groups that are not empty, whose numbers become at[]; else why they have no launch of their own. */
static const char *sizes_of(const nk_grouped_gemm_problem *p, const cuda_gpu *gpu, sm90_list_sizes *s,
                            int32_t at[SM90_LIST_MAX_GROUPS])
{
    int64_t rows = 0;
    *s = (sm90_list_sizes){.gpu = gpu};
    for (int64_t g = 0; g < p->groups; g++) {
        const nk_gemm_problem *one = &p->list[g];
        if (one->m * one->n == 0) continue;
        if (s->count == SM90_LIST_MAX_GROUPS) return APART("there are more than 32");
        const sm90_gemm_product product = {.first = one, .problem = one};
        if (sm90_gemm_why_not(&product, gpu, false, SM90_GEMM_w256)) return APART("no tile serves all of them");
        if (s->count && !is_alike(one, &p->list[at[0]])) return APART("their types or layouts are not the same");
        rows += one->m;
        at[s->count] = (int32_t)g;
        s->group[s->count].m = (int32_t)one->m;
        s->group[s->count].n = (int32_t)one->n;
        s->group[s->count++].k = (int32_t)one->k;
    }
    if (s->count < 2) return APART("there is one");
    s->lanes_copy = p->list[at[0]].b.sf_layout == NK_SF_LINEAR;
    const int64_t row_bytes = nk_ceil_div(sm90_list_longest_k(s), 2 * SM90_GEMM_STEP) * 2 * SM90_GEMM_STEP * 2;
    if ((rows + SM90_GEMM_MAX_TILE_M) * row_bytes > SM90_GEMM_MOST_WORKSPACE)
        return APART("their tokens take more than 256 MB in 16 bits");
    return NULL;
}

/* Steps of K of all rows in the workspace: whole slots, so that nothing is multiplied that nobody has written. */
static int64_t whole_steps(int64_t k, const sm90_gemm_shape *t)
{
    return nk_ceil_div(nk_ceil_div(k, SM90_GEMM_STEP), t->steps) * t->steps;
}

static void rows_and_steps(const nk_grouped_gemm_problem *p, const sm90_list_choice *c, int64_t *rows, int64_t *steps)
{
    *rows = *steps = 0;
    for (int i = 0; i < c->count; i++) {
        const nk_gemm_problem *one = &p->list[c->member[i].group];
        const int64_t its = whole_steps(one->k, &sm90_gemm_shapes[c->tile]);
        *rows += one->m;
        *steps = its > *steps ? its : *steps;
    }
}

static void describe(const nk_grouped_gemm_problem *p, const sm90_list_choice *c, int64_t tiles, nk_plan *plan)
{
    const sm90_gemm_shape *t = &sm90_gemm_shapes[c->tile];
    int64_t rows, steps;
    rows_and_steps(p, c, &rows, &steps);
    plan->kernel = c->product->name;
    plan->why = "one launch for all groups: CTAs walk over their tiles, the longest first; a first kernel brings all "
                "tokens to 16 bits";
    plan->tile = sm90_gemm_family.tiles[c->tile];
    plan->tile_m = c->member[0].tokens;
    plan->tile_n = t->rows;
    plan->tile_k = SM90_GEMM_STEP * t->steps;
    plan->grid = tiles < c->sms ? tiles : c->sms;
    plan->threads = t->threads;
    plan->stages = t->slots;
    plan->cluster = plan->split = 1;
    plan->workspace_bytes = (rows + t->tokens) * steps * SM90_GEMM_STEP * 2;
}

nk_status sm90_list_plan(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                         sm90_list_choice *c, const char **apart)
{
    const cuda_gpu *gpu = NULL;
    sm90_list_sizes sizes;
    int32_t at[SM90_LIST_MAX_GROUPS];
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    *apart = sizes_of(p, gpu, &sizes, at);
    if (*apart) return NK_OK;
    const sm90_list_arrangement *best = remembered(&sizes);
    const int64_t tiles = sm90_list_tiles(&sizes, best);
    if (best->tile == NK_TILE_ANY) *apart = APART("that is faster by cost");
    if (tiles < gpu->sms / 2) *apart = APART("they have few tiles");
    if (*apart) return NK_OK;
    *c = (sm90_list_choice){
        .product = list_tile_of(best->tile)->kernels[p->list[at[0]].a.dtype == NK_BF16],
        .tile = best->tile,
        .sms = gpu->sms,
        .count = sizes.count,
        .pdl = settings->pdl,
    };
    for (int i = 0; i < sizes.count; i++) {
        c->member[i] = best->member[i];
        c->member[i].group = at[best->member[i].group];
    }
    describe(p, c, tiles, plan);
    return NK_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Run                                                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A group but for its tensor map. What a dimension of extent 1 has for a stride may be any number, so that of batches
 * becomes 0. */
static void fill_group(const nk_gemm_problem *p, const sm90_list_choice *c, const sm90_list_member *member,
                       int64_t first_row, sm90_list_group *g)
{
    const sm90_gemm_product product = {.first = p, .problem = p};
    g->gemm = *p;
    g->gemm.b.batch_stride = g->gemm.b.sf_batch_stride = g->gemm.d.batch_stride = 0;
    g->gemm.d.data -= first_row * p->d.row_stride;
    g->scheduler = sm90_gemm_scheduler_of(&product, c->tile);
    g->scheduler.m_tiles = (int32_t)nk_ceil_div(p->m, member->tokens);
    g->scheduler.tiles = g->scheduler.n_tiles * g->scheduler.m_tiles;
    g->first_row = (int32_t)first_row;
    g->tile_m_index = member->width;
    g->tile_m = member->tokens;
}

static void fill(const nk_grouped_gemm_problem *p, const sm90_list_choice *c, sm90_list *list,
                 sm90_list_prepare_a *tokens)
{
    int64_t row = 0;
    list->count = tokens->count = c->count;
    list->scheduler = (sm90_gemm_scheduler){0};
    for (int i = 0; i < c->count; i++) {
        const nk_gemm_problem *one = &p->list[c->member[i].group];
        sm90_list_group *g = &list->group[i];
        fill_group(one, c, &c->member[i], row, g);
        g->first_tile = list->scheduler.tiles;
        list->scheduler.tiles += g->scheduler.tiles;
        tokens->group[i] = (sm90_list_rows){.a = one->a,
                                            .k = one->k,
                                            .first_row = (int32_t)row,
                                            .k_steps = (int32_t)whole_steps(one->k, &sm90_gemm_shapes[c->tile])};
        tokens->group[i].a.batch_stride = tokens->group[i].a.sf_batch_stride = 0;
        row += one->m;
    }
}

/* Of each group's weights, and of the tokens for each width that a group has. */
static nk_status encode_maps(const nk_grouped_gemm_problem *p, const sm90_list_choice *c, int64_t rows,
                             const sm90_prepared_a *x, sm90_list *list)
{
    const sm90_gemm_shape *t = &sm90_gemm_shapes[c->tile];
    cuda_boxes boxes[SM90_LIST_MAX_GROUPS + SM90_LIST_MAX_TILE_MS];
    cuda_tensor_map *to[SM90_LIST_MAX_GROUPS + SM90_LIST_MAX_TILE_MS];
    int32_t count = 0, seen = 0; /* a bit for each width */
    memset(list->tokens, 0, sizeof list->tokens);
    for (int i = 0; i < c->count; i++) {
        const nk_gemm_problem *one = &p->list[c->member[i].group];
        const sm90_gemm_product product = {.first = one, .problem = one};
        const int32_t width = c->member[i].width;
        boxes[count] = sm90_gemm_weight_boxes(&product, t, "weights", &one->b);
        to[count++] = &list->group[i].weights;
        if (seen >> width & 1) continue;
        seen |= 1 << width;
        boxes[count] = sm90_gemm_token_boxes(x, rows + t->tokens, rows, 1, c->member[i].tokens, t->steps);
        to[count++] = &list->tokens[width];
    }
    return cuda_encode_maps(p->device, count, boxes, to);
}

nk_status sm90_list_run(const nk_grouped_gemm_problem *p, const sm90_list_choice *c, const nk_exec *exec)
{
    const sm90_gemm_shape *t = &sm90_gemm_shapes[c->tile];
    const bool overlap = c->pdl != NK_PDL_OFF;
    sm90_list list;
    sm90_list_prepare_a tokens;
    int64_t rows, steps;
    rows_and_steps(p, c, &rows, &steps);
    tokens.to = (sm90_prepared_a){
        .data = exec->workspace, .k_steps = (int32_t)steps, .release_first = c->pdl == NK_PDL_WEIGHTS};
    fill(p, c, &list, &tokens);
    NK_TRY(encode_maps(p, c, rows, &tokens.to, &list));
    const cuda_grid first = {.x = rows,
                             .y = nk_ceil_div(16 * steps, SM90_PREPARE_A_THREADS),
                             .z = 1,
                             .threads = SM90_PREPARE_A_THREADS,
                             .overlap = overlap};
    const cuda_grid product = {.x = list.scheduler.tiles < c->sms ? list.scheduler.tiles : c->sms,
                               .y = 1,
                               .z = 1,
                               .threads = t->threads,
                               .smem_bytes = t->smem_bytes[0],
                               .overlap = overlap};
    NK_TRY(cuda_launch(&sm90_prepare_a_list, p->device, exec->stream, &first, (void *[]){&tokens}));
    return cuda_launch(c->product, p->device, exec->stream, &product, (void *[]){&list});
}
