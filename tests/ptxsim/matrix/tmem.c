/* Keeps a CTA's tensor memory: what is allocated, what was written, which uses are under way. */
#include "tmem.h"

#include "tcgen05.h"
#include "checks/report.h"
#include "exec/exec.h"

#include <stdlib.h>

tmem *sim_tmem(cta *c)
{
    if (c->tmem) return c->tmem;
    tmem *t = calloc(1, sizeof *t);
    memset(t->cells, POISON_BYTE, sizeof t->cells);
    t->least = TMEM_COLUMNS;
    t->warps = calloc(c->n_warps, sizeof *t->warps);
    t->heeded = calloc(c->n_threads, sizeof *t->heeded);
    return c->tmem = t;
}

void sim_tmem_close(cta *c)
{
    tmem *t = c->tmem;
    if (!t) return;
    for (uint32_t i = 0; i < c->n_threads; i++)
        sim_order_drop(&t->heeded[i]);
    for (uint32_t i = 0; i < c->n_warps; i++) {
        for (uint32_t k = 0; k < t->warps[i].n_pending; k++)
            free(t->warps[i].pending[k].values);
        free(t->warps[i].pending);
    }
    free(t->warps), free(t->heeded), free(t->queue), free(t);
    c->tmem = NULL;
}

cta *sim_tmem_peer(run *r, const insn *in)
{
    cluster *c = r->cta->cluster;
    uint32_t rank = r->cta->rank ^ 1;
    if (rank >= c->n) {
        sim_report(r, in, 'E', "cta-pair", -1, "cta_group::2 in CTA rank %u of a cluster of %u, which has no peer",
                   r->cta->rank, c->n);
        return NULL;
    }
    if (!c->ctas[rank]->done) return c->ctas[rank];
    sim_report(r, in, 'E', "exited-cta", -1, "cta_group::2, but the peer, CTA rank %u, has exited", rank);
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Uses                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

uint32_t sim_tmem_issue(run *r)
{
    tmem_warp *w = &sim_tmem(r->cta)->warps[r->warp->index];
    return ++w->count;
}

uint32_t sim_tmem_issue_by(run *r, uint32_t lane)
{
    uint32_t count = sim_tmem_issue(r);
    return r->cta->tmem->warps[r->warp->index].last_mma[lane] = count;
}

bool sim_tmem_allocated(run *r, const insn *in, const cta *owner, tmem_span span)
{
    static const char *const why[] = {"of the %u that there are", "which is not allocated"};
    uint32_t end = span.column + span.columns, units = owner->tmem ? owner->tmem->units : 0;
    for (uint32_t column = span.column; column < end; column++) {
        if (column < TMEM_COLUMNS && units >> column / TMEM_UNIT & 1) continue;
        char text[64];
        snprintf(text, sizeof text, why[column < TMEM_COLUMNS], TMEM_COLUMNS);
        sim_report(r, in, 'E', "tmem-unallocated", -1, "columns %u to %u of the tensor memory of CTA rank %u: %u, %s",
                   span.column, end - 1, owner->rank, column, text);
        return false;
    }
    return true;
}

static uint32_t record_of(const run *r, uint32_t count) /* below 2^31: at most 512 warps in a cluster */
{
    return (r->cta->rank * r->cta->n_warps + r->warp->index) << 22 | (count & 0x3fffff);
}

void sim_tmem_written(run *r, const insn *in, const cta *owner, tmem_span span)
{
    const tmem *t = owner->tmem;
    if (!sim_config.check_init || span.column + span.columns > TMEM_COLUMNS || !t) return;
    for (uint32_t g = 0; g < TMEM_GROUPS; g++) {
        for (uint32_t i = span.column; span.groups >> g & 1 && i < span.column + span.columns; i++) {
            if (t->last[TMEM_STORE][g][i] || t->last[TMEM_SUM][g][i] || t->last[TMEM_COPY][g][i]) continue;
            sim_report(r, in, 'N', "uninitialised", -1, "reads column %u of tensor memory, which nothing has written",
                       i);
            return;
        }
    }
}

bool sim_tmem_begin(run *r, const insn *in, uint32_t lanes, cta *owner, tmem_span span, tmem_use use, uint32_t count)
{
    if (!sim_tmem_allocated(r, in, owner, span)) return false;
    tmem *t = owner->tmem;
    sim_tmem_ordered(r, in, lanes, owner, span, use);
    if (use == TMEM_LOAD || use == TMEM_OPERAND || use == TMEM_SCALE) sim_tmem_written(r, in, owner, span);
    for (uint32_t g = 0; g < TMEM_GROUPS; g++) {
        for (uint32_t i = span.column; span.groups >> g & 1 && i < span.column + span.columns; i++) {
            t->last[use][g][i] = record_of(r, count);
            if (use == TMEM_SUM) t->tiles[g][i] = span.tile;
            t->under_way[use][g][i]++;
        }
    }
    return true;
}

void sim_tmem_end(cta *owner, tmem_span span, tmem_use use)
{
    for (uint32_t g = 0; g < TMEM_GROUPS; g++)
        for (uint32_t i = span.column; span.groups >> g & 1 && i < span.column + span.columns; i++)
            owner->tmem->under_way[use][g][i]--;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The end of a CTA                                                                                                 */
/* ---------------------------------------------------------------------------------------------------------------- */

void sim_tmem_exit(run *r)
{
    const tmem *t = r->cta->tmem;
    if (!t) return;
    uint32_t kept = t->n_allocations - (t->request.op == TMEM_DEALLOC);
    if (kept)
        sim_report(r, NULL, 'E', "tmem-leak", -1, "the CTA exits with %u allocation%s of tensor memory", kept,
                   kept == 1 ? "" : "s");
}
