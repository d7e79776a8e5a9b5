/* Parts a warp's lanes into fragments, lets them wait, and joins them again. */
#include "fragment.h"

#include "checks/report.h"
#include "sync/barrier.h"
#include "sync/cluster.h"

static fragment *new_fragment(warp *w)
{
    for (int i = 0; i < MAX_FRAGMENTS; i++) {
        if (w->fragments[i].state != FREE) continue;
        if (i >= w->n_fragments) w->n_fragments = i + 1;
        return &w->fragments[i];
    }
    return NULL; /* cannot be: 32 lanes make at most 32 fragments and 31 joins */
}

static fragment *parent_of(warp *w, const fragment *f) { return f->parent < 0 ? NULL : &w->fragments[f->parent]; }

fragment *sim_rejoin(warp *w, fragment *f)
{
    fragment *join = parent_of(w, f);
    join->arrived |= f->mask;
    f->state = FREE;
    if (join->arrived != join->mask) return NULL;
    join->state = READY;
    return join;
}

/* The taken lanes become a fragment of their own. Both sides meet at `rejoin`, where a join stands for what the
 * fragment was; inside the same join they are its children side by side. */
void sim_part(run *r, uint32_t taken, uint32_t target, uint32_t rejoin)
{
    warp *w = r->warp;
    fragment *f = r->fragment;
    if (rejoin != NONE && !(rejoin == f->rejoin && f->parent >= 0)) {
        fragment *join = new_fragment(w);
        *join = (fragment){.state = JOINING, .mask = f->mask, .pc = rejoin, .rejoin = f->rejoin, .parent = f->parent};
        f->parent = (int8_t)(join - w->fragments);
        f->rejoin = rejoin;
    }
    fragment *other = new_fragment(w);
    *other = *f;
    other->mask = taken;
    other->pc = target;
    f->mask &= ~taken;
    f->pc++;
    if (sim_random(&r->random) & 1) r->fragment = other; /* either may go first */
}

void sim_leave(run *r, uint32_t lanes)
{
    warp *w = r->warp;
    fragment *f = r->fragment;
    w->live &= ~lanes;
    r->cta->live -= (uint32_t)__builtin_popcount(lanes);
    f->mask &= ~lanes;
    if (!f->mask) f->state = FREE;
    for (fragment *join = parent_of(w, f); join; join = parent_of(w, join)) {
        join->mask &= ~lanes;
        if (!join->mask)
            join->state = FREE;
        else if (join->state == JOINING && join->arrived == join->mask)
            join->state = READY;
    }
    sim_wake(r->cta, W_GANG, UINT64_MAX, false); /* they may wait for fewer now */
    sim_barriers_after_exit(r);
    sim_cluster_after_exit(r, lanes);
}

/* `what` of a waiting fragment: its active lanes, in the upper half those it waits for. */
bool sim_gather(run *r, uint32_t members)
{
    warp *w = r->warp;
    fragment *mine = r->fragment;
    uint32_t here = r->mask;
    members &= w->live;
    if (!(members & ~here)) return true;
    for (int i = 0; i < w->n_fragments; i++) {
        fragment *f = &w->fragments[i];
        if (f->state == WAITING && f->reason == W_GANG && f->pc == mine->pc) {
            here |= (uint32_t)f->what;
            members |= (uint32_t)(f->what >> 32) & w->live;
        }
    }
    if (members & ~here) {
        mine->state = WAITING;
        mine->reason = W_GANG;
        mine->what = (uint64_t)members << 32 | r->mask;
        return false;
    }
    for (int i = 0; i < w->n_fragments; i++) {
        fragment *f = &w->fragments[i];
        if (f->state != WAITING || f->reason != W_GANG || f->pc != mine->pc) continue;
        f->state = READY;
        f->pc++;
    }
    r->mask = here;
    return true;
}

void sim_wake(cta *c, wait_reason reason, uint64_t what, bool behind)
{
    for (uint32_t k = 0; k < c->n_warps; k++) {
        warp *w = &c->warps[k];
        for (int i = 0; i < w->n_fragments; i++) {
            fragment *f = &w->fragments[i];
            if (f->state != WAITING || f->reason != reason || (what != UINT64_MAX && f->what != what)) continue;
            f->state = READY;
            if (behind) f->pc++;
        }
    }
}
