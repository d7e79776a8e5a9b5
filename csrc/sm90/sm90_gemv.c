#include "sm90_backend.h"
#include "sm90_gemv_config.h"

#include <string.h>

extern cuda_image cuda_image_sm90_gemv, cuda_image_sm90_gemv_codes;

enum { CODES, HALVES, FEW_CODES, FEW_HALVES, FEW_BFLOATS };
enum { LINEAR, BLOCKED, NARROW };
#define KERNEL(image_name, text) {.name = "sm90_gemv_" text, .image = &cuda_image_##image_name}
#define PATHS(image, text) \
    {KERNEL(image, text "_linear"), KERNEL(image, text "_blocked"), KERNEL(image, text "_narrow")}
#define KERNELS(image, text) {PATHS(image, text), PATHS(image, text "_short")}
static cuda_kernel kernels[][2][3] = {
    [CODES] = KERNELS(sm90_gemv_codes, "codes"),       [HALVES] = KERNELS(sm90_gemv, "halves"),
    [FEW_CODES] = KERNELS(sm90_gemv, "few_codes"),     [FEW_HALVES] = KERNELS(sm90_gemv, "few_halves"),
    [FEW_BFLOATS] = KERNELS(sm90_gemv, "few_bfloats"),
};

/* bf16 does not fit the kernel for one token: bare codes are 2^-126 times their values there, and small products of
 * them would leave fp32. */
static int form_of(const nk_gemv_problem *p)
{
    if (p->a.dtype == NK_BF16) return FEW_BFLOATS;
    return (p->m == 1 ? CODES : FEW_CODES) + (p->a.dtype == NK_F16);
}

/* The low bits of every address of an operand's values and of its scale factors. A stride that leads nowhere may be any
 * number. */
static uint64_t bits_of_data(const nk_operand *o, int64_t rows, int64_t batches)
{
    return (uint64_t)(uintptr_t)o->data | (rows > 1 ? (uint64_t)o->row_stride : 0) |
           (batches > 1 ? (uint64_t)o->batch_stride : 0);
}

static uint64_t bits_of_sf(const nk_operand *o, int64_t rows, int64_t batches)
{
    return (uint64_t)(uintptr_t)o->sf | (rows > 1 && o->sf_layout == NK_SF_LINEAR ? (uint64_t)o->sf_row_stride : 0) |
           (batches > 1 ? (uint64_t)o->sf_batch_stride : 0);
}

static int path_of(const nk_gemv_problem *p)
{
    uint64_t data = bits_of_data(&p->a, p->m, p->l) | bits_of_data(&p->b, p->n, p->l);
    uint64_t sf = bits_of_sf(&p->b, p->n, p->l), token_sf = 0;
    if (p->a.dtype == NK_E2M1X2) token_sf = bits_of_sf(&p->a, p->m, p->l);
    if (p->k % (2 * SM90_GEMV_CHUNK) || data % 16 || sf % 4 || token_sf % 2) return NARROW;
    return p->b.sf_layout == NK_SF_BLOCKED ? BLOCKED : LINEAR;
}

typedef struct shape {
    sm90_gemv_params params;
    bool is_short;
    int32_t warps, smem_bytes;
    int64_t clusters; /* of a batch */
} shape;

static int32_t team_of(const nk_gemv_problem *p) { return form_of(p) == CODES ? SM90_GEMV_TEAM : 1; }

static int32_t tile_rows(const nk_gemv_problem *p, bool is_short)
{
    return team_of(p) * SM90_GEMV_OCTET * (is_short ? 1 : 2);
}

#define LARGE_CLUSTERS .9 /* of a GPU's CTAs that clusters of four and more can be: parts of it are no multiple */

/* Deals `rows` rows to each cluster; false where shared memory is less than their sums and the tokens take. */
static bool fits(const nk_gemv_problem *p, const cuda_gpu *gpu, int log_cluster, int64_t places, int64_t rows, shape *s)
{
    int ctas_per_sm = SM90_GEMV_WARPS / s->warps;
    int64_t units = nk_ceil_div(sm90_gemv_units(p->k), (int64_t)1 << log_cluster);
    int64_t tokens_bytes = form_of(p) == CODES ? units * SM90_GEMV_CODES_BYTES : p->m * sm90_gemv_token_bytes(units);
    int64_t room = gpu->smem_per_sm / ctas_per_sm - 1024;
    if (room > gpu->smem_per_cta) room = gpu->smem_per_cta;
    if (tokens_bytes > room) return false; /* from here on 32 bits are enough */
    int32_t tile = tile_rows(p, s->is_short), tiles = ((int32_t)rows + tile - 1) / tile;
    int32_t teams = s->warps / team_of(p), run = (tiles * (int32_t)units + teams - 1) / teams;
    s->params = (sm90_gemv_params){
        .rows = (int32_t)rows,
        .units = (int32_t)units,
        .all_places = (int32_t)places,
        .all_units = (int32_t)sm90_gemv_units(p->k),
        .all_words = (int32_t)(p->k / 8),
        .atoms_bytes = (int32_t)(nk_sf_padded_cols(p->k / NK_SF_VEC) * NK_SF_ATOM_ROWS),
        .run = run > 0 ? run : 1,
        .log_cluster = log_cluster,
    };
    s->clusters = nk_ceil_div(places, rows);
    const int32_t units_of[2] = {(int32_t)units, units ? s->params.all_units % (int32_t)units : 0};
    for (int some = 0; some < 2; some++) { /* all CTAs but a cluster's last with any units, that one */
        if (!units_of[some]) continue;
        int32_t parts = sm90_gemv_teams_of_tile(units_of[some], s->params.run, teams);
        if (parts > s->params.parts) s->params.parts = parts;
        for (int32_t team = 0; team < teams; team++)
            s->params.starts[some][team] = sm90_gemv_start_of(team, s->params.run, units_of[some]);
    }
    int32_t inboxes = log_cluster ? sm90_gemv_inbox_rows((int32_t)rows, log_cluster) << log_cluster : 0;
    s->smem_bytes = sm90_gemv_sums_at(s->warps, (int32_t)tokens_bytes) +
                    (s->params.parts * (int32_t)rows + inboxes) * (int32_t)p->m * 4;
    return s->smem_bytes <= room;
}

#define MORE_WAVES 8 /* of CTAs than there must be, at most: sums of fewer rows need less shared memory */

/* The shape of a launch of CTAs of s->warps warps that make short tiles or not, 1 << log_cluster of which share rows,
 * in `more` waves than there must be; false where it does not fit. */
static bool shape_of(const nk_gemv_problem *p, const cuda_gpu *gpu, int log_cluster, int more, shape *s)
{
    int64_t batches = p->l > 0 ? p->l : 1, slots = (int64_t)gpu->sms * (SM90_GEMV_WARPS / s->warps);
    if (log_cluster > 1) slots = (int64_t)((double)slots * LARGE_CLUSTERS);
    slots = (slots >> log_cluster) / batches;
    if (slots < 1) slots = 1;
    int64_t places = sm90_gemv_places(p->n, p->b.sf_layout == NK_SF_BLOCKED);
    int64_t least = nk_ceil_div(places, slots * SM90_GEMV_ROWS);
    int64_t rows = nk_ceil_div(places, slots * ((least > 0 ? least : 1) + more));
    return fits(p, gpu, log_cluster, places, rows > 0 ? rows : 1, s);
}

/* Cycles, fitted to an H200's times. NVFP4 tokens one by one: 33 matrices in 14 shapes each, the picked one takes 0.4 %
 * more than the best on average, 4 % at most. The others: 126 cases of 14 matrices and 1 to 8 tokens in 16 shapes, and
 * 1.6 % and 10 %; bf16 was not timed and takes fp16's. */
typedef struct costs {
    double tall_step, short_step;              /* of a team beside all others of an SM: latencies before all */
    double bytes_per_cycle;                    /* of an SM, from memory */
    double solo;                               /* of a beginning and an end that no other CTA of the SM fills */
    double cluster[SM90_GEMV_LOG_CLUSTER + 1]; /* sums go to other CTAs, and all must have room at once */
} costs;

static const costs costs_of_form[] = {
    [CODES] = {1150, 850, 17, 500, {0, 1000, 1600, 4500}},
    [HALVES] = {1330, 1300, 23, 2370, {0, 1080, 2420, 2920}},
    [FEW_CODES] = {1040, 1020, 23, 425, {0, 1080, 2420, 2920}},
    [FEW_HALVES] = {1040, 1020, 23, 425, {0, 1080, 2420, 2920}},
    [FEW_BFLOATS] = {1040, 1020, 23, 425, {0, 1080, 2420, 2920}},
};

#define STAGE_CYCLES 685.0 /* of one NVFP4 token: a chunk for each thread of an SM */
#define TOKEN_BYTES_PER_CYCLE 19
#define CODES_BYTES_PER_CYCLE 50 /* of NVFP4 tokens in 16 bits */
#define SHORT_READS 1.06         /* of what reading takes: lines of fewer rows at a time */

/* Tokens into shared memory. */
static double staging_cycles(const nk_gemv_problem *p, const shape *s)
{
    int32_t ctas_per_sm = SM90_GEMV_WARPS / s->warps, threads = 32 * s->warps, units = s->params.units;
    if (form_of(p) == CODES) return (units * SM90_GEMV_CHUNKS + threads - 1) / threads * STAGE_CYCLES;
    double bytes = (double)(ctas_per_sm * p->m * sm90_gemv_token_bytes(units));
    return bytes / (p->a.dtype == NK_E2M1X2 ? CODES_BYTES_PER_CYCLE : TOKEN_BYTES_PER_CYCLE);
}

static double cycles_of(const nk_gemv_problem *p, const cuda_gpu *gpu, const shape *s)
{
    const costs *c = &costs_of_form[form_of(p)];
    int32_t ctas_per_sm = SM90_GEMV_WARPS / s->warps, slots = gpu->sms * ctas_per_sm;
    int64_t waves = nk_ceil_div((p->l * s->clusters) << s->params.log_cluster, slots);
    double bytes = (double)ctas_per_sm * s->params.rows * s->params.units * SM90_GEMV_UNIT * 9 / 16;
    double steps = s->params.run * (s->is_short ? c->short_step : c->tall_step);
    double memory = bytes / c->bytes_per_cycle * (s->is_short ? SHORT_READS : 1);
    double cycles = (steps > memory ? steps : memory) + staging_cycles(p, s);
    return (double)waves * (cycles + c->cluster[s->params.log_cluster] + (ctas_per_sm == 1 ? c->solo : 0));
}

/* The fastest shape of those that fit; false where none does. */
static bool find_shape(const nk_gemv_problem *p, const cuda_gpu *gpu, int more, shape *best)
{
    const bool only_short = form_of(p) == CODES && path_of(p) == NARROW;
    double least = 0;
    for (int log_cluster = 0; log_cluster <= SM90_GEMV_LOG_CLUSTER; log_cluster++) {
        for (int choice = only_short ? 2 : 0; choice < 4; choice++) {
            shape s = {.warps = choice & 1 ? SM90_GEMV_WARPS : SM90_GEMV_WARPS / 2, .is_short = choice & 2};
            if (!shape_of(p, gpu, log_cluster, more, &s)) continue;
            double cycles = cycles_of(p, gpu, &s);
            if (best->warps && cycles >= least) continue;
            *best = s;
            least = cycles;
        }
    }
    return best->warps;
}

/* All that a shape depends on. */
typedef struct question {
    const cuda_gpu *gpu;
    int64_t l, m, n, k;
    int32_t form, path;
    int64_t is_blocked;
} question;

/* A shape, and the kernel that follows from it and the question. */
typedef struct answer {
    question asked;
    shape shape;
    bool fits;
    cuda_kernel *kernel;
} answer;

static void pick_shape(const nk_gemv_problem *p, const question *q, answer *a)
{
    *a = (answer){.asked = *q};
    for (int more = 0; more <= MORE_WAVES && !a->fits; more++)
        a->fits = find_shape(p, q->gpu, more, &a->shape);
    a->kernel = &kernels[q->form][a->shape.is_short][q->path];
}

#define ANSWERS 16

/* Picking a shape takes as long as all else before a launch. A call asks twice, and the next ones ask the same.
 * NULL where no shape fits; valid until this thread asks for another problem. */
static const answer *shape_for(const nk_gemv_problem *p)
{
    static _Thread_local answer answers[ANSWERS];
    const cuda_gpu *gpu = NULL;
    if (cuda_gpu_of(p->device, &gpu) != NK_OK) return NULL;
    const question q = {gpu, p->l, p->m, p->n, p->k, form_of(p), path_of(p), p->b.sf_layout == NK_SF_BLOCKED};
    answer *a = &answers[(uint64_t)(q.n * 5 + q.k * 3 + q.m + q.l) / 8 % ANSWERS];
    if (memcmp(&a->asked, &q, sizeof q) != 0) pick_shape(p, &q, a);
    return a->fits ? a : NULL;
}

#define LARGEST_N (1 << 30)      /* rows are counted in 32 bits */
#define LARGEST_K (1 << 23)      /* so are steps */
#define LARGEST_STRIDE (6 << 20) /* so are bytes from an atom's first row to a CTA's last */
#define LARGEST_BATCH 65535      /* the grid's y */

_Static_assert((uint64_t)LARGEST_STRIDE *(NK_SF_ATOM_ROWS + SM90_GEMV_ROWS) < UINT32_MAX, "offsets of 32 bits");

static bool is_in_range(const nk_gemv_problem *p)
{
    uint64_t stride = (uint64_t)p->b.row_stride, sf_stride = (uint64_t)p->b.sf_row_stride;
    bool close = stride <= LARGEST_STRIDE && (p->b.sf_layout == NK_SF_BLOCKED || sf_stride <= LARGEST_STRIDE);
    return p->m <= SM90_GEMV_TOKENS && p->n <= LARGEST_N && p->k < LARGEST_K && p->l <= LARGEST_BATCH &&
           (p->n <= 1 || close);
}

nk_status sm90_plan_gemv(const nk_gemv_problem *p, nk_plan *plan)
{
    const bool serves = is_in_range(p) && !nk_settings_of_call()->batch_invariant;
    const answer *a = serves ? shape_for(p) : NULL;
    if (!a) return NK_DECLINED;
    const shape *s = &a->shape;
    plan->kernel = a->kernel->name;
    plan->why = a->asked.path == NARROW ? "few tokens; weights are read byte by byte: K or an address is not aligned"
                                        : "few tokens: weights are read once";
    plan->tile_m = p->m;
    plan->tile_n = tile_rows(p, s->is_short);
    plan->tile_k = SM90_GEMV_UNIT;
    plan->grid = (p->l * s->clusters) << s->params.log_cluster;
    plan->threads = 32 * s->warps;
    plan->stages = SM90_GEMV_SLOTS / (s->is_short ? 1 : 2);
    plan->cluster = 1 << s->params.log_cluster;
    return NK_OK;
}

nk_status sm90_run_gemv(const nk_gemv_problem *p, const nk_exec *exec)
{
    const sm90_pdl pdl = sm90_pdl_wanted();
    const answer *a = shape_for(p);
    NK_CHECK(a, NK_BACKEND_ERROR, "sm90: no shape for this gemv");
    const shape *s = &a->shape;
    sm90_gemv_params params = s->params;
    params.early = pdl == SM90_PDL_WEIGHTS;
    cuda_grid grid = {.x = s->clusters << params.log_cluster,
                      .y = p->l,
                      .z = 1,
                      .threads = 32 * s->warps,
                      .smem_bytes = s->smem_bytes,
                      .cluster = 1 << params.log_cluster,
                      .overlap = pdl != SM90_PDL_OFF};
    void *args[] = {(void *)(uintptr_t)p, &params};
    return cuda_launch(a->kernel, p->device, exec->stream, &grid, args);
}
