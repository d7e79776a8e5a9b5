/* Plans and runs a call: by the row's gemv or by tiles, whichever is faster by cost. */
#include "gemm_plan.h"

typedef struct gemm_choice {
    bool is_gemv;
    union {
        _Alignas(NK_CHOICE_ALIGNMENT) unsigned char gemv[NK_CHOICE_BYTES - NK_CHOICE_ALIGNMENT];
        gemm_launch tiles;
    };
} gemm_choice;

NK_CHOICE_FITS(gemm_choice);

nk_status gemm_plan(const gemm_row *row, const gemm_desc *d, const nk_settings *settings, nk_plan *plan, void *choice)
{
    const bool is_empty = d->experts && (gemm_experts(d) == 0 || gemm_is_empty_group(d->gemm));
    if (row->is_last && is_empty) return NK_OK; /* no launch */
    const char *why = row->why_not ? row->why_not(d, settings) : NULL;
    if (why) return gemm_decline(row->family(d), settings, why, plan);
    if (d->list) return (row->plan_list ? row->plan_list : gemm_plan_list)(row, d, settings, plan, choice);
    gemm_choice *c = choice;
    nk_plan tiled = *plan;
    double gemv_us = INFINITY;
    const nk_status status = row->plan_gemv ? row->plan_gemv(d, settings, plan, c->gemv, &gemv_us) : NK_DECLINED;
    c->is_gemv = status == NK_OK;
    if ((status != NK_OK && status != NK_DECLINED) || gemv_us == 0) return status;
    gemm_launch launch;
    const nk_status of_tiles = gemm_plan_tiles(row, row->family(d), d, settings, &tiled, &launch);
    if (c->is_gemv && (of_tiles == NK_DECLINED || (of_tiles == NK_OK && gemv_us <= launch.us))) return NK_OK;
    if (of_tiles == NK_OK) *c = (gemm_choice){.tiles = launch};
    *plan = tiled;
    return of_tiles;
}

nk_status gemm_run(const gemm_row *row, const gemm_desc *d, const void *choice, const nk_exec *exec)
{
    const gemm_choice *c = choice;
    if (d->list) return (row->run_list ? row->run_list : gemm_run_list)(row, d, choice, exec);
    return c->is_gemv ? row->run_gemv(d, c->gemv, exec) : gemm_run_tiles(d, &c->tiles, exec);
}
