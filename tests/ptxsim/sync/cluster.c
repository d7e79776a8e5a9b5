/* Executes barriers of clusters, addresses in a peer's shared memory, proxy fences, setmaxnreg and launch control. */
#include "cluster.h"

#include "checks/flags.h"
#include "checks/report.h"
#include "checks/scopes.h"
#include "checks/shadow.h"
#include "checks/stores.h"
#include "exec/exec_value.h"
#include "flight.h"
#include "machine/fragment.h"
#include "machine/memory.h"

#include <stdlib.h>

static void finish_if_complete(run *r)
{
    cluster *c = r->cta->cluster;
    uint32_t live = 0;
    for (uint32_t i = 0; i < c->n; i++)
        live += c->ctas[i]->live;
    if (!c->arrived || c->arrived < live) return;
    c->arrived = 0;
    c->met = true;
    sim_order_drop(&c->done);
    c->done = c->order;
    c->order = NULL;
    r->stats.barriers++;
    r->idle_steps = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        for (uint32_t k = 0; k < c->ctas[i]->n_warps; k++)
            c->ctas[i]->warps[k].at_cluster = 0;
        sim_wake(c->ctas[i], W_CLUSTER, UINT64_MAX, false);
    }
}

/* flags: releases; whole_warp: .aligned */
step sim_exec_cluster_arrive(run *r, const insn *in)
{
    warp *w = r->warp;
    if (in->whole_warp && r->mask != w->live)
        sim_report(r, in, 'W', "diverged-aligned", -1, "lanes %08x of %08x come to an aligned cluster barrier", r->mask,
                   w->live);
    if (w->owes_cluster & r->mask) {
        sim_report(r, in, 'E', "cluster-barrier", __builtin_ctz(w->owes_cluster & r->mask),
                   "arrives again without having waited");
        return STEP_FAIL;
    }
    if (in->flags)
        sim_order_arrive(r, &r->cta->cluster->order, sim_config.check_scopes ? in->place : 0);
    else
        sim_order_arrive_weakly(r, &r->cta->cluster->order, false);
    sim_scope_executed(r, in, (uint32_t)__builtin_popcount(r->mask), 0);
    w->at_cluster |= r->mask;
    w->owes_cluster |= r->mask;
    r->cta->cluster->arrived += (uint32_t)__builtin_popcount(r->mask);
    finish_if_complete(r);
    return STEP_NEXT;
}

step sim_exec_cluster_wait(run *r, const insn *in)
{
    warp *w = r->warp;
    if (~w->owes_cluster & r->mask) {
        sim_report(r, in, 'E', "cluster-barrier", __builtin_ctz(~w->owes_cluster & r->mask),
                   "waits without having arrived");
        return STEP_FAIL;
    }
    if (w->at_cluster & r->mask) {
        r->fragment->state = WAITING;
        r->fragment->reason = W_CLUSTER;
        return STEP_WAIT;
    }
    w->owes_cluster &= ~r->mask;
    sim_order_acquire(r, r->mask, r->cta->cluster->done);
    return STEP_NEXT;
}

void sim_cluster_after_exit(run *r, uint32_t lanes)
{
    warp *w = r->warp;
    r->cta->cluster->arrived -= (uint32_t)__builtin_popcount(w->at_cluster & lanes);
    w->at_cluster &= ~lanes;
    finish_if_complete(r);
}

void sim_cluster_close(cluster *c)
{
    sim_order_drop(&c->order);
    sim_order_drop(&c->done);
    sim_flags_leave(c);
    free(c->flights);
}

/* The same place in CTA o[2] of the cluster: a shared address of 32 bits, or (op 'g') a generic one. */
step sim_exec_mapa(run *r, const insn *in)
{
    uint64_t out[LANES] = {0};
    ACTIVE(r)
    {
        uint64_t a = sim_lane(r, in->o[1], in->reg_size, i), rank = sim_lane(r, in->o[2], 4, i);
        if (rank >= r->cta->cluster->n) {
            sim_report(r, in, 'E', "out-of-bounds", (int)i, "CTA %llu in a cluster of %u", (unsigned long long)rank,
                       r->cta->cluster->n);
            return STEP_FAIL;
        }
        out[i] = (a & ~(uint64_t)RANK_MASK) | rank << RANK_SHIFT;
    }
    return sim_put_lanes(r, in->o[0], in->reg_size, out);
}

/* Hints, and that the next kernel may come: they run one after the other. */
step sim_exec_nothing(run *r, const insn *in)
{
    (void)r, (void)in;
    return STEP_SLEEP;
}

/* Those before this one have ended. */
step sim_exec_kernels_wait(run *r, const insn *in)
{
    (void)in;
    r->warp->waited |= r->mask;
    return STEP_SLEEP;
}

/* flags: .inc, which waits until others have given back enough. */
step sim_exec_setmaxnreg(run *r, const insn *in)
{
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    warp *w = r->warp;
    uint32_t wanted = (uint32_t)in->imm, had = w->register_share;
    if (in->imm % 8 || in->imm < 24 || in->imm > 256) {
        sim_report(r, in, 'E', "setmaxnreg", -1, "%lld registers, not a multiple of 8 from 24 to 256",
                   (long long)in->imm);
        return STEP_FAIL;
    }
    if (in->flags ? wanted < had : wanted > had) {
        sim_report(r, in, 'E', "setmaxnreg", -1, "from %u registers to %u by .%s", had, wanted,
                   in->flags ? "inc" : "dec");
        return STEP_FAIL;
    }
    if (in->flags && wanted - had > r->cta->spare_registers) {
        r->fragment->state = WAITING;
        r->fragment->reason = W_REGISTERS;
        r->fragment->what = wanted - had;
        return STEP_WAIT;
    }
    w->register_share = wanted;
    r->cta->spare_registers += had - wanted;
    if (!in->flags) sim_wake(r->cta, W_REGISTERS, UINT64_MAX, false);
    return STEP_SLEEP;
}

/* flags: FENCE_* */
step sim_exec_proxy_fence(run *r, const insn *in)
{
    sim_order_fence(r, in->flags);
    if (in->flags & FENCE_GLOBAL) sim_stores_fence(r);
    return STEP_SLEEP;
}
