/* gemv, and gemm of a few tokens, on Hopper: plan and run. */
#include "nk_memo.h"
#include "sm90/sm90_backend.h"

#include "cuda/cuda_encode.h"
#include "sm90_gemv_scheduler.h"

#include <stddef.h>

#define LAYOUTS(name) {&sm90_gemv_##name##_linear, &sm90_gemv_##name##_blocked}
#define ACCESSES(name) {&sm90_gemv_##name##_linear, &sm90_gemv_##name##_blocked, &sm90_gemv_##name##_narrow}
static cuda_kernel *const kernels[][2][3] = {
    /* [is_short]: short tiles are for one NVFP4 token only, which has only these if its access is narrow */
    [SM90_GEMV_CODES] = {LAYOUTS(codes), ACCESSES(codes_short)},
    [SM90_GEMV_FP16] = {ACCESSES(fp16)},
    [SM90_GEMV_BF16] = {ACCESSES(bf16)},
    [SM90_GEMV_FEW_CODES] = {ACCESSES(few_codes)},
    [SM90_GEMV_FEW_FP16] = {ACCESSES(few_fp16)},
    [SM90_GEMV_FEW_BF16] = {ACCESSES(few_bf16)},
};

static cuda_kernel *const dual_kernels[][2] = {
    [SM90_GEMV_CODES_AS_FP16] = LAYOUTS(codes_dual), [SM90_GEMV_FP16] = LAYOUTS(fp16_dual),
    [SM90_GEMV_BF16] = LAYOUTS(bf16_dual),           [SM90_GEMV_FEW_CODES] = LAYOUTS(few_codes_dual),
    [SM90_GEMV_FEW_FP16] = LAYOUTS(few_fp16_dual),   [SM90_GEMV_FEW_BF16] = LAYOUTS(few_bf16_dual),
};

#define EXPERTS(name) {LAYOUTS(experts_##name), LAYOUTS(experts_##name##_dual)}
static cuda_kernel *const experts_kernels[][2][2] = {
    /* [is_dual] */
    [SM90_GEMV_CODES_AS_FP16] = EXPERTS(codes),
    [SM90_GEMV_FP16] = EXPERTS(fp16),
    [SM90_GEMV_BF16] = EXPERTS(bf16),
};

static cuda_kernel *const list_kernels[][2] = {
    [SM90_GEMV_FEW_CODES] = LAYOUTS(list_codes),
    [SM90_GEMV_FEW_FP16] = LAYOUTS(list_fp16),
    [SM90_GEMV_FEW_BF16] = LAYOUTS(list_bf16),
};

static cuda_kernel *const map_kernels[] = LAYOUTS(map);

/* All kernels use the same resources. */
static nk_status count_gemv_clusters(cuda_kernel *kernel, nk_device device, const cuda_gpu *gpu, sm90_gemv_clusters *c)
{
    c->gpu = NULL;
    for (int32_t per_sm = 1; per_sm <= 2; per_sm++)
        NK_TRY(cuda_clusters_by_size(kernel, device, 32 * SM90_GEMV_WARPS / per_sm, per_sm, SM90_GEMV_MAX_CLUSTER,
                                     c->at_once[per_sm - 1]));
    c->gpu = gpu;
    return NK_OK;
}

/* All that a schedule depends on. */
typedef struct gemv_question {
    const cuda_gpu *gpu;
    int64_t l, m, n, k;
    int32_t kind, access, is_dual, has_experts, is_list, is_blocked, has_maps;
    int32_t forced; /* a tile, or NK_TILE_ANY */
} gemv_question;

NK_CHOICE_FITS(sm90_gemv_choice);

static cuda_kernel *pick_kernel(const sm90_gemv_variant *variant, sm90_gemv_access access, bool is_short)
{
    if (variant->is_list) return list_kernels[variant->kind][access];
    if (variant->has_experts) return experts_kernels[variant->kind][variant->is_dual][access];
    return variant->is_dual ? dual_kernels[variant->kind][access] : kernels[variant->kind][is_short][access];
}

/* Finding a schedule takes as long as all else before a launch, and the next calls ask the same. */
static nk_status find_schedule_once(const nk_gemv_problem *p, const sm90_gemv_variant *variant, int forced,
                                    sm90_gemv_choice *c)
{
    NK_MEMO(gemv_question, sm90_gemv_choice, memo);
    static _Thread_local sm90_gemv_clusters clusters;
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const gemv_question q = {gpu,
                             p->l,
                             p->m,
                             p->n,
                             p->k,
                             variant->kind,
                             sm90_gemv_access_of(p),
                             variant->is_dual,
                             variant->has_experts,
                             variant->is_list,
                             p->b.sf_layout == NK_SF_BLOCKED,
                             sm90_gemv_has_maps(p),
                             forced};
    const size_t at = nk_memo_slot(&q, sizeof q);
    if (memcmp(&memo[at].asked, &q, sizeof q) != 0) {
        sm90_gemv_choice *answer = &memo[at].answer;
        cuda_kernel *any = pick_kernel(variant, q.access, q.kind == SM90_GEMV_CODES);
        if (clusters.gpu != gpu) NK_TRY(count_gemv_clusters(any, p->device, gpu, &clusters));
        bool fits = sm90_gemv_find_schedule(p, variant, &clusters, forced, &answer->schedule);
        answer->kernel = !fits                            ? NULL
                         : answer->schedule.by_tensor_map ? map_kernels[q.access]
                                                          : pick_kernel(variant, q.access, answer->schedule.is_short);
        memo[at].asked = q;
    }
    *c = memo[at].answer;
    return NK_OK;
}

#define LARGEST_N (1 << 30)      /* rows are counted in 32 bits */
#define LARGEST_K (1 << 23)      /* so are steps */
#define LARGEST_STRIDE (6 << 20) /* so are bytes from the first row of an atom to the last row of a CTA */
#define LARGEST_BATCH 65535      /* the grid's z */

_Static_assert(offsetof(sm90_gemv_args, b) == 48 && offsetof(sm90_gemv_args, d) == 176, "operands fill lines");
_Static_assert(LARGEST_K / SM90_GEMV_STEP <= 1 << SM90_GEMV_K_STEP_BITS, "K steps of a start, and in 16 bits");
_Static_assert(SM90_GEMV_MAX_TILES < 1 << SM90_GEMV_TILE_BITS, "tiles of a start");
_Static_assert((uint64_t)LARGEST_STRIDE *(NK_SF_ATOM_ROWS + SM90_GEMV_MAX_ROWS) < UINT32_MAX, "offsets of 32 bits");

bool sm90_gemv_fits_32_bits(const nk_gemv_problem *p)
{
    uint64_t stride = (uint64_t)p->b.row_stride, sf_stride = (uint64_t)p->b.sf_row_stride;
    bool close = stride <= LARGEST_STRIDE && (p->b.sf_layout == NK_SF_BLOCKED || sf_stride <= LARGEST_STRIDE);
    return p->m <= SM90_GEMV_MAX_TOKENS && p->n <= LARGEST_N && p->k < LARGEST_K && p->l <= LARGEST_BATCH &&
           (p->n <= 1 || close);
}

/* Another row of the backend table serves the call, unless a tile of this family is forced. */
static nk_status decline_gemv(const nk_gemv_problem *p, sm90_gemv_kind kind, const nk_settings *settings, int forced)
{
    const char *why = NULL;
    if (forced == NK_TILE_ANY || p->m > SM90_GEMV_MAX_TOKENS) return NK_DECLINED;
    if (settings->batch_invariant)
        why = "no tile of this family keeps NVFP4KERN_BATCH_INVARIANT=1";
    else if (!sm90_gemv_fits_32_bits(p))
        why = "N, K, L or a stride of the weights is larger than any tile of this family takes";
    else
        why = sm90_gemv_why_not(p, kind, forced);
    return NK_TILE_REFUSE(&sm90_gemv_family, forced, "%s", why ? why : "its CTAs do not fit into shared memory");
}

nk_status sm90_gemv_plan(const nk_gemv_problem *p, const sm90_gemv_variant *variant, const nk_settings *settings,
                         nk_plan *plan, sm90_gemv_choice *c)
{
    const int forced = nk_tile_forced(settings, &sm90_gemv_family);
    if (!sm90_gemv_fits_32_bits(p) || settings->batch_invariant)
        return decline_gemv(p, variant->kind, settings, forced);
    const sm90_gemv_schedule *s = &c->schedule;
    NK_TRY(find_schedule_once(p, variant, forced, c));
    if (!c->kernel) return decline_gemv(p, variant->kind, settings, forced);
    c->pdl = settings->pdl;
    plan->kernel = c->kernel->name;
    plan->why = sm90_gemv_access_of(p) == SM90_GEMV_NARROW
                    ? "few tokens; weights are read byte by byte: K or an address is not aligned"
                    : "few tokens: weights are read once";
    plan->tile_m = p->m;
    plan->tile_n = sm90_gemv_tile_rows(variant->kind, s->is_short);
    plan->tile_k = SM90_GEMV_STEP;
    plan->grid = p->l * s->clusters * s->scheduler.cluster;
    plan->threads = 32 * s->warps;
    plan->stages = SM90_GEMV_PIPELINE_M8S / (s->is_short ? 1 : 2);
    plan->cluster = s->scheduler.cluster;
    plan->tile = sm90_gemv_family.tiles[s->tile];
    return NK_OK;
}

nk_status sm90_plan_gemv(const nk_gemv_problem *p, const nk_settings *settings, nk_plan *found, void *choice)
{
    return sm90_gemv_plan(p, &(sm90_gemv_variant){.kind = sm90_gemv_kind_of(p)}, settings, found, choice);
}

nk_status sm90_plan_gemv_dual(const gemm_desc *d, const nk_settings *settings, nk_plan *found, sm90_gemv_choice *choice)
{
    const nk_gemv_problem *p = d->gemm;
    nk_gemv_problem second = *p, both = *p;
    second.b = *d->up;
    both.n *= 2;
    const sm90_gemv_access access = sm90_gemv_access_of(p);
    const sm90_gemv_kind kind = sm90_gemv_kind_of(p);
    const sm90_gemv_variant variant = {.kind = kind == SM90_GEMV_CODES ? SM90_GEMV_CODES_AS_FP16 : kind,
                                       .is_dual = true};
    if (access == SM90_GEMV_NARROW || access != sm90_gemv_access_of(&second)) return NK_DECLINED;
    if (p->m > SM90_GEMV_MAX_TOKENS || p->n % SM90_GEMV_M8 || p->k == 0) return NK_DECLINED;
    if (!sm90_gemv_fits_32_bits(p) || !sm90_gemv_fits_32_bits(&second)) return NK_DECLINED;
    return sm90_gemv_plan(&both, &variant, settings, found, choice);
}

#define CODES(...)                \
    {.name = "weights",           \
     .at = b->data,               \
     .dtype = NK_E2M1X2,          \
     .rank = 5,                   \
     .swizzle = CUDA_SWIZZLE_128, \
     .l2 = CUDA_L2_128,           \
     __VA_ARGS__}
#define FACTORS(...) {.name = "scale factors", .at = b->sf, .dtype = NK_E4M3, .rank = 4, .l2 = CUDA_L2_128, __VA_ARGS__}

/* See sm90_gemv_maps. If scale factors are blocked, one dimension goes through a row quad, whose rows lie 32 apart. So
 * strides do not grow from one dimension to the next. The driver's documentation says that they do, but nothing checks
 * it. */
static nk_status encode_gemv_maps(const nk_gemv_problem *p, const sm90_gemv_schedule *s, sm90_gemv_maps *maps)
{
    const nk_operand *b = &p->b;
    const uint64_t n = (uint64_t)p->n, k = (uint64_t)p->k, l = (uint64_t)p->l, atoms = n / NK_SF_ATOM_ROWS,
                   quads = NK_SF_ATOM_ROWS / 4;
    const uint64_t row = cuda_map_stride(b->row_stride, p->n), batch = cuda_map_stride(b->batch_stride, p->l),
                   sf_row = cuda_map_stride(b->sf_row_stride, p->n),
                   sf_batch = cuda_map_stride(b->sf_batch_stride, p->l);
    const uint32_t rows = (uint32_t)sm90_gemv_tile_rows(s->variant.kind, s->is_short), line = SM90_GEMV_STEP / 2,
                   factors = SM90_GEMV_STEP / NK_SF_VEC;
    const cuda_boxes linear[] = {
        CODES(.dims = {k / 2, n, 1, 1, l}, .strides = {row, 16, 16, batch}, .box = {line, rows, 1, 1, 1}),
        FACTORS(.dims = {k / NK_SF_VEC, n, 1, l}, .strides = {sf_row, 16, sf_batch}, .box = {factors, rows, 1, 1})};
    const cuda_boxes blocked[] = {CODES(.dims = {k / 2, 4, quads, atoms, l},
                                        .strides = {quads * row, row, NK_SF_ATOM_ROWS * row, batch},
                                        .box = {line, 4, rows / 4, 1, 1}),
                                  FACTORS(.dims = {NK_SF_ATOM_BYTES, k / NK_SF_VEC / NK_SF_ATOM_COLS, atoms, l},
                                          .strides = {NK_SF_ATOM_BYTES, (uint64_t)s->scheduler.atoms_bytes, sf_batch},
                                          .box = {rows * NK_SF_ATOM_COLS, factors / NK_SF_ATOM_COLS, 1, 1})};
    return cuda_encode_maps(p->device, 2, b->sf_layout == NK_SF_BLOCKED ? blocked : linear,
                            (cuda_tensor_map *[]){&maps->codes, &maps->sf});
}

sm90_gemv_args sm90_gemv_args_of(const nk_gemv_problem *p, const sm90_gemv_choice *c)
{
    sm90_gemv_args args = {.scheduler = c->schedule.scheduler,
                           .b = p->b,
                           .a = p->a,
                           .d = p->d,
                           .alpha = p->alpha,
                           .bias = p->bias,
                           .row_scale = p->row_scale};
    memcpy(args.starts, c->schedule.starts, sizeof args.starts);
    args.scheduler.early =
        c->pdl == NK_PDL_WEIGHTS; /* kernels of experts ignore it: they do not know the expert before */
    return args;
}

nk_status sm90_gemv_launch(const nk_gemv_problem *p, const sm90_gemv_choice *c, void *const parameters[],
                           const nk_exec *exec)
{
    const sm90_gemv_schedule *s = &c->schedule;
    const cuda_grid grid = {.x = s->clusters,
                            .y = s->scheduler.cluster,
                            .z = p->l,
                            .threads = 32 * s->warps,
                            .smem_bytes = s->smem_bytes,
                            .cluster.y = s->scheduler.cluster,
                            .overlap = c->pdl != NK_PDL_OFF};
    return cuda_launch(c->kernel, p->device, exec->stream, &grid, parameters);
}

nk_status sm90_gemv_run(const nk_gemv_problem *p, const sm90_gemv_dual *dual, const sm90_gemv_experts *experts,
                        const sm90_gemv_choice *c, const nk_exec *exec)
{
    sm90_gemv_args args = sm90_gemv_args_of(p, c);
    sm90_gemv_maps maps;
    args.dual = *dual;
    if (c->schedule.by_tensor_map) NK_TRY(encode_gemv_maps(p, &c->schedule, &maps));
    /* The second parameter is unused by kernels that have one only. */
    return sm90_gemv_launch(p, c, (void *[]){&args, experts ? (void *)experts : (void *)&maps}, exec);
}

nk_status sm90_run_gemv(const nk_gemv_problem *p, const void *choice, const nk_exec *exec)
{
    return sm90_gemv_run(p, &(sm90_gemv_dual){0}, NULL, choice, exec);
}

nk_status sm90_run_gemv_dual(const gemm_desc *d, const sm90_gemv_choice *choice, const nk_exec *exec)
{
    const nk_dual_gemm_problem *p = d->params;
    nk_gemv_problem first = *d->gemm;
    first.alpha = p->alpha1;
    first.bias = p->bias1;
    const sm90_gemv_dual dual = {.b = p->b2, .alpha = p->alpha2, .bias = p->bias2, .activation = p->activation};
    return sm90_gemv_run(&first, &dual, NULL, choice, exec);
}
