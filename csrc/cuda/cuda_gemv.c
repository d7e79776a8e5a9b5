/* gemv, and gemm of a few tokens, of Blackwell's rows: plan and run. */
#include "cuda_gemv.h"

#include "nk_memo.h"

/* All kernels use the same resources. */
static nk_status count_clusters(nk_device device, const cuda_gpu *gpu, const cuda_gemv_row *row,
                                gemv_clusters *resident)
{
    resident->gpu = NULL;
    for (int tile = 0; row->family->tiles[tile]; tile++) {
        const int32_t warps = cuda_gemv_warps_of(tile);
        NK_TRY(cuda_clusters_by_size(row->kernels[0][0], device, 32 * warps, GEMV_WARPS / warps, row->max_cluster,
                                     resident->at_once[tile]));
    }
    resident->gpu = gpu;
    return NK_OK;
}

/* All that a schedule depends on: of the rows that plan here no GPU runs more than one. */
typedef struct schedule_question {
    const cuda_gpu *gpu;
    int64_t l, m, n, k;
    int32_t kind, access, forced, batch_invariant;
} schedule_question;

NK_CHOICE_FITS(gemv_choice);

static nk_status find_schedule(const nk_gemv_problem *p, const cuda_gemv_row *row, int forced, bool batch_invariant,
                               gemv_schedule *schedule)
{
    NK_MEMO(schedule_question, gemv_schedule, memo);
    static _Thread_local gemv_clusters resident;
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const schedule_question q = {gpu,    p->l,           p->m, p->n, p->k, cuda_gemv_kind_of(p), cuda_gemv_access_of(p),
                                 forced, batch_invariant};
    const size_t slot = nk_memo_slot(&q, sizeof q);
    if (memcmp(&memo[slot].asked, &q, sizeof q) != 0) {
        if (resident.gpu != gpu) NK_TRY(count_clusters(p->device, gpu, row, &resident));
        memo[slot].answer = cuda_gemv_find_schedule(p, row, &resident, forced, batch_invariant);
        memo[slot].asked = q;
    }
    *schedule = memo[slot].answer;
    return NK_OK;
}

#define LARGEST_EXTENT (1 << 30) /* what kernels count in 32 bits */

static const char *why_not(const nk_gemv_problem *p)
{
    if (p->m > GEMV_MAX_TOKENS) return "it is for few tokens";
    if (p->n > LARGEST_EXTENT || p->k > LARGEST_EXTENT) return "N or K is larger than any tile of this family takes";
    return NULL;
}

nk_status cuda_plan_gemv(const nk_gemv_problem *p, const cuda_gemv_row *row, const nk_settings *settings, nk_plan *plan,
                         void *choice)
{
    gemv_choice *c = choice;
    const int forced = nk_tile_forced(settings, row->family);
    const char *why = why_not(p);
    *c = (gemv_choice){.pdl = settings->pdl};
    if (!why) {
        NK_TRY(find_schedule(p, row, forced, settings->batch_invariant, &c->schedule));
        if (!c->schedule.warps) why = "tokens and sums do not fit into shared memory";
    }
    if (why && forced != NK_TILE_ANY) return NK_TILE_REFUSE(row->family, forced, "%s", why);
    if (why) return nk_decline(plan, why);
    const gemv_access access = cuda_gemv_access_of(p);
    const gemv_scheduler *w = &c->schedule.scheduler;
    c->kernel = row->kernels[cuda_gemv_kind_of(p)][access];
    plan->kernel = c->kernel->name;
    plan->why = access == GEMV_NARROW ? "few tokens; weights are read byte by byte: K or an address is not aligned"
                                      : "few tokens: weights are read once, 32 bytes a lane";
    plan->tile_m = p->m;
    plan->tile_n = GEMV_TILE_ROWS;
    plan->tile_k = GEMV_STEP;
    plan->grid = p->l * w->clusters * w->cluster;
    plan->threads = 32 * c->schedule.warps;
    plan->stages = GEMV_STAGES;
    plan->cluster = w->cluster;
    plan->split = w->cluster;
    plan->tile = row->family->tiles[c->schedule.tile];
    plan->batch_invariant = settings->batch_invariant;
    return NK_OK;
}

nk_status cuda_run_gemv(const nk_gemv_problem *p, const void *choice, const nk_exec *exec)
{
    const gemv_choice *c = choice;
    gemv_args args = {.scheduler = c->schedule.scheduler, .problem = *p};
    args.scheduler.early = c->pdl == NK_PDL_WEIGHTS;
    const cuda_grid grid = {.x = p->l * args.scheduler.clusters,
                            .y = args.scheduler.cluster,
                            .z = 1,
                            .threads = 32 * c->schedule.warps,
                            .smem_bytes = c->schedule.smem_bytes,
                            .cluster.y = args.scheduler.cluster,
                            .overlap = c->pdl != NK_PDL_OFF};
    void *parameters[] = {&args};
    return cuda_launch(c->kernel, p->device, exec->stream, &grid, parameters);
}
