/* The cost model of sm90/gemv. split: CTAs of a cluster. */
#include "model.h"

#include "sm90/gemv/sm90_gemv_scheduler.c"

static nk_gemv_problem problem_of(const model_problem *p)
{
    const nk_operand token = {.dtype = p->wide ? NK_F16 : NK_E2M1X2,
                              .row_stride = p->wide ? 2 * p->k : p->k / 2,
                              .sf_row_stride = p->k / NK_SF_VEC};
    const nk_operand weights = {.dtype = NK_E2M1X2,
                                .row_stride = p->k / 2,
                                .sf_row_stride = p->k / NK_SF_VEC,
                                .sf_layout = p->blocked ? NK_SF_BLOCKED : NK_SF_LINEAR};
    return (nk_gemv_problem){.l = 1, .m = p->m, .n = p->n, .k = p->k, .a = token, .b = weights};
}

static sm90_gemv_clusters room_of(const model_gpu *facts, const cuda_gpu *gpu)
{
    _Static_assert(sizeof facts->clusters == sizeof((sm90_gemv_clusters *)0)->at_once, "of any size");
    sm90_gemv_clusters room = {.gpu = gpu};
    for (int i = 0; i < 2; i++)
        for (int size = 0; size <= SM90_GEMV_MAX_CLUSTER; size++)
            room.at_once[i][size] = facts->clusters[i][size];
    return room;
}

/* explain shows neither the rows of a cluster nor whether they are whole tiles: the faster of those that look alike. */
double model_us(const model_gpu *facts, const model_problem *problem, const model_choice *choice)
{
    const cuda_gpu gpu = gpu_of(facts);
    const sm90_gemv_clusters room = room_of(facts, &gpu);
    const nk_gemv_problem p = problem_of(problem);
    const sm90_gemv_kind kind = sm90_gemv_kind_of(&p);
    double least = -1;
    for (int more = 0; more <= MORE_WAVES && least < 0; more++) {
        for (int whole = tiles[choice->tile].by_tensor_map; whole < (kind == SM90_GEMV_CODES ? 2 : 1); whole++) {
            sm90_gemv_schedule s = {.tile = choice->tile,
                                .warps = tiles[choice->tile].warps,
                                .is_short = tiles[choice->tile].is_short,
                                .by_tensor_map = tiles[choice->tile].by_tensor_map,
                                .variant = {.kind = kind}};
            if (!schedule_of(&p, &room, choice->split, more, whole, &s)) continue;
            if (s.clusters * choice->split != choice->grid) continue;
            const double us = schedule_us(&p, &room, &s);
            if (least < 0 || us < least) least = us;
        }
    }
    return least;
}

bool model_pick(const model_gpu *facts, const model_problem *problem, int32_t tile, bool invariant,
                model_choice *choice)
{
    const cuda_gpu gpu = gpu_of(facts);
    const sm90_gemv_clusters room = room_of(facts, &gpu);
    const nk_gemv_problem p = problem_of(problem);
    const sm90_gemv_variant variant = {.kind = sm90_gemv_kind_of(&p)};
    sm90_gemv_schedule s;
    if (invariant || !sm90_gemv_find_schedule(&p, &variant, &room, tile < 0 ? NK_TILE_ANY : tile, &s)) return false;
    *choice = (model_choice){s.tile, s.scheduler.cluster, s.clusters * s.scheduler.cluster};
    return true;
}
