/* Keeps what threads know of each other's effects, and which of those proxy fences have covered. */
#include "clocks.h"
#include "exec/exec.h"
#include "matrix/tmem.h"

#include <stdlib.h>

void sim_order_drop(clock_set **order)
{
    if (*order && --(*order)->references == 0) free(*order);
    *order = NULL;
}

static void adopt(thread_order *t, clock_set *seen)
{
    if (t->seen == seen) return;
    seen->references++;
    sim_order_drop(&t->seen);
    t->seen = seen;
}

static uint32_t warps_of(const cta *c) { return c->cluster->n * c->n_warps; }

static void tick(thread_order *t)
{
    if (t->clock < MOST_CLOCK) t->clock++;
}

/* A set: what is seen of each thread; for each kind that the kernel's fences cover, what is covered of each thread;
 * where arrivals may be weak, what is weakly known of each thread; where it uses tensor memory, what sim_order_tensor
 * names, of each warp. */
static uint32_t kinds_of(const cta *c)
{
    uint32_t fences = c->launch->program->fences;
    bool shared = fences & (FENCE_SHARED_CTA | FENCE_SHARED_CLUSTER);
    return (uint32_t)shared << COVERED_OWN | (uint32_t)(shared && c->cluster->n > 1) << COVERED_PEERS |
           (uint32_t)!!(fences & FENCE_GLOBAL) << COVERED_GLOBAL | (uint32_t)!!(fences & FENCE_INITS) << COVERED_INITS;
}

/* The index of a kind's first thread, 0: no fence covers it. */
static uint32_t place_of(const cta *c, covered kind)
{
    uint32_t kinds = kinds_of(c), below = kinds & ((1u << kind) - 1);
    return kinds >> kind & 1 ? (1 + (uint32_t)__builtin_popcount(below)) * threads_of(c) : 0;
}

static uint32_t first_weak(const cta *c) { return (1 + (uint32_t)__builtin_popcount(kinds_of(c))) * threads_of(c); }

static bool has_weak(const cta *c)
{
    return c->launch->program->relaxes || (sim_config.check_scopes && c->cluster->n > 1);
}

static uint32_t first_tensor(const cta *c) { return first_weak(c) + has_weak(c) * threads_of(c); }

static uint32_t size_of(const cta *c)
{
    return first_tensor(c) + (c->launch->program->cta_group ? TENSOR_CLOCKS * warps_of(c) : 0);
}

uint32_t sim_order_tensor(const cta *c, tensor_clock which, uint32_t warp)
{
    return first_tensor(c) + which * warps_of(c) + warp;
}

static void raise_to(uint32_t *to, uint32_t clock)
{
    if (*to < clock) *to = clock;
}

static void release_covered(clock_set *into, const cta *c, uint32_t self, const thread_order *t)
{
    for (covered kind = 0; kind < COVERED_KINDS; kind++)
        if (t->covered[kind]) raise_to(&into->at[place_of(c, kind) + self], known_of(t->covered[kind]));
}

static void release(clock_set *into, const cta *c, uint32_t thread, const clock_set **last)
{
    thread_order *t = &c->shadow->threads[thread];
    if (t->seen != *last) merge(into, t->seen);
    *last = t->seen;
    uint32_t self = first_thread(c) + thread;
    into->at[self] = known_of(t->clock);
    release_covered(into, c, self, t);
    if (c->tmem) sim_tmem_release(c, thread / LANES, into);
    tick(t);
}

/* What other CTAs learn of this one's threads they learn by this. */
static void stamp(clock_set *set, const cta *c, uint32_t place)
{
    for (uint32_t k = first_thread(c), end = k + c->n_threads; place && k < end; k++)
        if (set->at[k] && !place_in(set->at[k])) set->at[k] -= place;
}

void sim_order_arrive(run *r, clock_set **order, uint32_t place)
{
    const cta *c = r->cta;
    const clock_set *last = NULL;
    if (!c->shadow) return;
    if (!*order) *order = new_set(size_of(c));
    ACTIVE(r)
    {
        const thread_order *t = &c->shadow->threads[r->warp->index * LANES + i];
        if (t->seen && t->seen != last && covers(*order, t->seen)) last = t->seen;
        release(*order, c, r->warp->index * LANES + i, &last);
    }
    stamp(*order, c, place);
}

void sim_order_acquire(run *r, uint32_t lanes, clock_set *order)
{
    const cta *c = r->cta;
    if (!c->shadow || !order) return;
    clock_set *last_before = NULL, *last_after = NULL, *enough = NULL;
    for (; lanes; lanes &= lanes - 1) {
        thread_order *t = &c->shadow->threads[r->warp->index * LANES + (uint32_t)__builtin_ctz(lanes)];
        if (t->seen && t->seen == enough) continue;
        if (!last_after || t->seen != last_before) { /* lanes that knew the same go on knowing the same */
            if (covers(t->seen, order)) {
                enough = t->seen;
                continue;
            }
            sim_order_drop(&last_after);
            last_after = new_set(order->n);
            last_before = t->seen;
            merge(last_after, t->seen);
            merge(last_after, order);
        }
        adopt(t, last_after);
    }
    sim_order_drop(&last_after);
}

/* Relaxed synchronisation carries the order of tensor memory, and what an initialisation fence covers; arrivals also
 * what is weakly known. */
static void merge_from(uint32_t first, clock_set *into, const clock_set *from)
{
    for (uint32_t i = first; from && i < into->n; i++)
        raise_to(&into->at[i], from->at[i]);
}

/* Where a narrow release or acquire begins to tell: what is covered for the asynchronous proxy, if that is enough. */
static uint32_t first_narrow(const cta *c) { return sim_config.fenced_stores ? threads_of(c) : first_weak(c); }

/* What is known is weakly known, too. */
static void weaken(const cta *c, clock_set *into, const clock_set *from)
{
    for (uint32_t i = 0, first = first_weak(c), n = threads_of(c); has_weak(c) && from && i < n; i++)
        raise_to(&into->at[first + i], from->at[i]);
}

void sim_order_arrive_weakly(run *r, clock_set **order, bool narrow)
{
    const cta *c = r->cta;
    const bool weak = has_weak(c);
    const clock_set *last = NULL;
    if (!c->shadow) return;
    ACTIVE(r)
    {
        const uint32_t thread = r->warp->index * LANES + i, self = first_thread(c) + thread;
        thread_order *t = &c->shadow->threads[thread];
        if (!*order && (c->tmem || t->covered[COVERED_INITS] || weak)) *order = new_set(size_of(c));
        if (t->covered[COVERED_INITS])
            raise_to(&(*order)->at[place_of(c, COVERED_INITS) + self], known_of(t->covered[COVERED_INITS]));
        if (*order && t->seen != last) merge_from(narrow ? first_narrow(c) : first_weak(c), *order, t->seen);
        if (narrow && *order && sim_config.fenced_stores) release_covered(*order, c, self, t);
        if (narrow && t->seen != last) weaken(c, *order, t->seen);
        if (narrow && weak) raise_to(&(*order)->at[first_weak(c) + self], known_of(t->clock));
        if (narrow) tick(t);
        if (c->tmem) sim_tmem_release(c, r->warp->index, *order);
        last = t->seen;
    }
}

/* The lanes know more afterwards: what `more` has from an index on, with `narrow` also that of it which needs no order;
 * or one clock. */
static void learn(run *r, uint32_t lanes, const clock_set *more, bool narrow, uint32_t index, uint32_t clock)
{
    const cta *c = r->cta;
    clock_set *before = NULL, *after = NULL;
    for (; lanes; lanes &= lanes - 1) {
        thread_order *t = &c->shadow->threads[r->warp->index * LANES + (uint32_t)__builtin_ctz(lanes)];
        if (!after || t->seen != before) {
            sim_order_drop(&after);
            after = new_set(size_of(c));
            before = t->seen;
            merge(after, t->seen);
            if (more) merge_from(index, after, more);
            if (narrow) weaken(c, after, more);
            if (!more) raise_to(&after->at[index], clock);
        }
        adopt(t, after);
    }
    sim_order_drop(&after);
}

void sim_order_acquire_relaxed(run *r, uint32_t lanes, const clock_set *order)
{
    if (r->cta->shadow && r->program->cta_group && order) learn(r, lanes, order, false, first_tensor(r->cta), 0);
}

void sim_order_acquire_narrow(run *r, uint32_t lanes, const clock_set *order)
{
    if (r->cta->shadow && order) learn(r, lanes, order, true, first_narrow(r->cta), 0);
}

void sim_order_raise(run *r, uint32_t lanes, uint32_t index, uint32_t clock)
{
    if (r->cta->shadow) learn(r, lanes, NULL, false, index, clock);
}

clock_set *sim_order_seen(const cta *c, uint32_t thread) { return c->shadow ? c->shadow->threads[thread].seen : NULL; }

void sim_order_barrier(cta *c, named_barrier *b, uint32_t number)
{
    if (!c->shadow || !b->order) return;
    for (uint32_t k = 0; k < c->n_warps; k++) {
        warp *w = &c->warps[k];
        for (int f = 0; f < w->n_fragments; f++) {
            const fragment *at = &w->fragments[f];
            if (at->state != WAITING || at->reason != W_BARRIER || at->what != number) continue;
            for (uint32_t lanes = at->mask; lanes; lanes &= lanes - 1)
                adopt(&c->shadow->threads[k * LANES + (uint32_t)__builtin_ctz(lanes)], b->order);
        }
    }
    sim_order_drop(&b->order);
}

void sim_order_warp(run *r, uint32_t lanes)
{
    const cta *c = r->cta;
    const clock_set *last = NULL;
    if (!c->shadow) return;
    clock_set *set = new_set(size_of(c));
    for (uint32_t left = lanes; left; left &= left - 1)
        release(set, c, r->warp->index * LANES + (uint32_t)__builtin_ctz(left), &last);
    for (uint32_t left = lanes; left; left &= left - 1)
        adopt(&c->shadow->threads[r->warp->index * LANES + (uint32_t)__builtin_ctz(left)], set);
    sim_order_drop(&set);
}

uint32_t sim_order_issue(run *r, uint32_t lane)
{
    const cta *c = r->cta;
    if (!c->shadow) return 0;
    uint32_t thread = r->warp->index * LANES + lane;
    thread_order *t = &c->shadow->threads[thread];
    uint32_t epoch = epoch_of(first_thread(c) + thread, t->clock);
    tick(t);
    return epoch;
}

void sim_order_signal(cta *signalled, clock_set **order, uint32_t epoch)
{
    if (!signalled->shadow || !epoch) return;
    if (!*order) *order = new_set(size_of(signalled));
    raise_to(&(*order)->at[thread_in(epoch)], known_of(clock_in(epoch)));
}

void sim_order_landed(cta *signalled, clock_set **order, uint32_t epoch)
{
    sim_order_signal(signalled, order, epoch);
    if (*order && epoch && has_weak(signalled))
        raise_to(&(*order)->at[first_weak(signalled) + thread_in(epoch)], known_of(clock_in(epoch)));
}

bool sim_order_weakly_known(const cta *c, const thread_order *me, uint32_t epoch)
{
    return has_weak(c) && me->seen && clock_in(epoch) <= clock_of(me->seen->at[first_weak(c) + thread_in(epoch)]);
}

void sim_order_tell(run *r)
{
    clock_set *told = NULL;
    sim_order_signal(r->cta, &told, sim_order_issue(r, (uint32_t)__builtin_ctz(r->mask)));
    sim_order_acquire(r, r->mask, told);
    sim_order_drop(&told);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Proxy fences                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

bool sim_order_covered(const cta *c, const thread_order *me, uint32_t self, covered kind, uint32_t epoch)
{
    uint32_t thread = thread_in(epoch), clock = clock_in(epoch), place = place_of(c, kind);
    if (epoch == 0 || clock == MOST_CLOCK) return true;
    if (thread == self && clock <= me->covered[kind]) return true;
    return place && me->seen && clock <= clock_of(me->seen->at[place + thread]);
}

/* Of what the set knows of threads from `first` to `end`. */
static void cover(const cta *c, clock_set *set, covered kind, uint32_t first, uint32_t end)
{
    uint32_t place = place_of(c, kind);
    for (uint32_t k = first; place && k < end; k++)
        raise_to(&set->at[place + k], set->at[k]);
}

static void cover_all(const cta *c, clock_set *set, uint32_t spaces)
{
    uint32_t all = threads_of(c), first = first_thread(c), end = first + c->n_threads;
    bool wide = spaces & FENCE_SHARED_CLUSTER, shared = wide || spaces & FENCE_SHARED_CTA;
    if (shared) cover(c, set, COVERED_OWN, wide ? 0 : first, wide ? all : end);
    if (shared) cover(c, set, COVERED_PEERS, 0, wide ? all : first);
    if (shared) cover(c, set, COVERED_PEERS, end, all);
    if (spaces & FENCE_GLOBAL) cover(c, set, COVERED_GLOBAL, 0, all);
}

void sim_order_fence(run *r, uint32_t spaces)
{
    const cta *c = r->cta;
    if (!c->shadow) return;
    clock_set *before = NULL, *after = NULL;
    ACTIVE(r)
    {
        thread_order *t = &c->shadow->threads[r->warp->index * LANES + i];
        if (spaces & (FENCE_SHARED_CTA | FENCE_SHARED_CLUSTER)) t->covered[COVERED_OWN] = t->clock;
        if (spaces & FENCE_SHARED_CLUSTER && c->cluster->n > 1) t->covered[COVERED_PEERS] = t->clock;
        if (spaces & FENCE_GLOBAL) t->covered[COVERED_GLOBAL] = t->clock;
        if (spaces & FENCE_INITS) t->covered[COVERED_INITS] = t->clock;
        tick(t);
        if (!t->seen || spaces == FENCE_INITS) continue;
        if (!after || t->seen != before) { /* lanes that knew the same have the same covered */
            sim_order_drop(&after);
            before = t->seen;
            after = new_set(before->n);
            merge(after, before);
            cover_all(c, after, spaces);
        }
        adopt(t, after);
    }
    sim_order_drop(&after);
}
