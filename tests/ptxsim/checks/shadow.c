/* Checks that what is read of shared memory was written, and that synchronisation orders the accesses. */
#include "shadow.h"
#include "clocks.h"
#include "history.h"
#include "report.h"
#include "exec/exec.h"
#include "matrix/tmem.h"

/* ---------------------------------------------------------------------------------------------------------------- */
/* Who knows what                                                                                                   */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct thread_order {
    clock_set *seen; /* NULL: of nobody */
    uint32_t clock;
    uint32_t fenced; /* of its own effects, those that its proxy fences cover; others learn of them by its releases */
    uint32_t initialised; /* those that relaxed arrivals tell of, too */
} thread_order;

struct shadow {
    thread_order *threads;
    histories histories;            /* where races are looked for */
    uint8_t *ever, *flying, *async; /* a bit per byte: written at all; target of a copy under way; written by one */
    uint8_t *sending;               /* operations under way that have yet to read the byte */
    uint32_t n_sending;             /* of all bytes */
};

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

static uint32_t threads_of(const cta *c) { return c->cluster->n * c->n_threads; }
static uint32_t warps_of(const cta *c) { return c->cluster->n * c->n_warps; }
static uint32_t first_thread(const cta *c) { return c->rank * c->n_threads; }

static void tick(thread_order *t)
{
    if (t->clock < MOST_CLOCK) t->clock++;
}

/* Behind the two halves, where the kernel uses tensor memory: what sim_order_tensor names, of each warp. */
static uint32_t size_of(const cta *c)
{
    return 2 * threads_of(c) + (c->launch->program->cta_group ? TENSOR_CLOCKS * warps_of(c) : 0);
}

uint32_t sim_order_tensor(const cta *c, tensor_clock which, uint32_t warp)
{
    return 2 * threads_of(c) + which * warps_of(c) + warp;
}

static void release(clock_set *into, const cta *c, uint32_t thread, const clock_set **last)
{
    thread_order *t = &c->shadow->threads[thread];
    if (t->seen != *last) merge(into, t->seen);
    *last = t->seen;
    uint32_t self = first_thread(c) + thread, *fenced = &into->at[threads_of(c) + self];
    into->at[self] = t->clock;
    if (*fenced < t->fenced) *fenced = t->fenced;
    if (c->tmem) sim_tmem_release(c, thread / LANES, into);
    tick(t);
}

void sim_order_arrive(run *r, clock_set **order)
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

/* Of what relaxed synchronisation carries: the order of tensor memory, and what an initialisation fence covers. */
static void merge_tensor(const cta *c, clock_set *into, const clock_set *from)
{
    for (uint32_t i = 2 * threads_of(c); from && i < into->n; i++)
        into->at[i] = into->at[i] > from->at[i] ? into->at[i] : from->at[i];
}

void sim_order_arrive_relaxed(run *r, clock_set **order)
{
    const cta *c = r->cta;
    if (!c->shadow) return;
    ACTIVE(r)
    {
        const uint32_t thread = r->warp->index * LANES + i, self = first_thread(c) + thread;
        const thread_order *t = &c->shadow->threads[thread];
        if (!*order && (c->tmem || t->initialised)) *order = new_set(size_of(c));
        if (t->initialised > (*order ? (*order)->at[self] : 0)) {
            (*order)->at[self] = t->initialised;
            if ((*order)->at[threads_of(c) + self] < t->fenced) (*order)->at[threads_of(c) + self] = t->fenced;
        }
        if (!c->tmem) continue;
        merge_tensor(c, *order, t->seen);
        sim_tmem_release(c, r->warp->index, *order);
    }
}

/* The lanes know more afterwards: `more` of tensor memory, or one clock. */
static void learn(run *r, uint32_t lanes, const clock_set *more, uint32_t index, uint32_t clock)
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
            merge_tensor(c, after, more);
            if (!more && after->at[index] < clock) after->at[index] = clock;
        }
        adopt(t, after);
    }
    sim_order_drop(&after);
}

void sim_order_acquire_relaxed(run *r, uint32_t lanes, const clock_set *order)
{
    if (r->cta->shadow && r->program->cta_group && order) learn(r, lanes, order, 0, 0);
}

void sim_order_raise(run *r, uint32_t lanes, uint32_t index, uint32_t clock)
{
    if (r->cta->shadow) learn(r, lanes, NULL, index, clock);
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

/* ---------------------------------------------------------------------------------------------------------------- */
/* Accesses                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

void sim_shadow_open(cta *c)
{
    if (!sim_config.check_races && !sim_config.check_init) return;
    struct shadow *s = calloc(1, sizeof *s);
    s->threads = calloc(c->n_threads, sizeof *s->threads);
    for (uint32_t i = 0; i < c->n_threads; i++)
        s->threads[i].clock = 1;
    s->ever = calloc(c->smem_bytes / 8 + 16, 1);
    s->flying = calloc(c->smem_bytes / 8 + 16, 1);
    s->sending = calloc(c->smem_bytes + 1, 1);
    s->async = calloc(c->smem_bytes / 8 + 16, 1);
    if (sim_config.check_races) sim_histories_open(&s->histories, c->smem_bytes);
    c->shadow = s;
}

void sim_shadow_close(cta *c)
{
    struct shadow *s = c->shadow;
    if (!s) return;
    for (uint32_t i = 0; i < c->n_threads; i++)
        sim_order_drop(&s->threads[i].seen);
    for (uint32_t i = 0; i < MAX_BARRIERS; i++)
        sim_order_drop(&c->barriers[i].order);
    sim_histories_close(&s->histories);
    free(s->threads), free(s->ever), free(s->flying), free(s->sending), free(s->async), free(s);
    c->shadow = NULL;
}

static bool before(const thread_order *me, uint32_t self, uint32_t epoch)
{
    uint32_t thread = epoch >> CLOCK_BITS & ((1u << THREAD_BITS) - 1), clock = epoch & MOST_CLOCK;
    return epoch == 0 || thread == self || clock == MOST_CLOCK || (me->seen && clock <= me->seen->at[thread]);
}

static bool fenced(const thread_order *me, uint32_t self, uint32_t half, uint32_t epoch)
{
    uint32_t thread = epoch >> CLOCK_BITS & ((1u << THREAD_BITS) - 1), clock = epoch & MOST_CLOCK;
    if (thread == self && clock <= me->fenced) return true;
    return epoch == 0 || clock == MOST_CLOCK || (me->seen && clock <= me->seen->at[half + thread]);
}

static void race(run *r, const insn *in, uint32_t lane, uint32_t offset, uint32_t epoch, access how, bool was_write)
{
    static const char *const verbs[] = {"reads", "writes", "updates", "copies to"};
    uint32_t thread = epoch >> CLOCK_BITS & ((1u << THREAD_BITS) - 1), n = r->cta->n_threads;
    sim_report(r, in, 'W', "race", (int)lane,
               "%s shared byte %u, which thread %u of CTA rank %u %s without synchronisation in between", verbs[how],
               offset, thread % n, thread / n, was_write ? "wrote" : "read");
}

static void check_order(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes, access how)
{
    struct shadow *s = owner->shadow;
    uint32_t self = first_thread(r->cta) + r->warp->index * LANES + lane;
    const thread_order *me = &r->cta->shadow->threads[self - first_thread(r->cta)];
    uint32_t mine = epoch_of(self, me->clock), end = offset + bytes, step;
    history last = {0};
    bool writes = how == WRITE || how == LANDING;
    for (uint32_t i = offset; i < end; i += step) {
        history *at = sim_history(&s->histories, i, end, &step), then = *at;
        if (how == READ) then.read = 0;
        if (how == ATOMIC) then.updated = 0;
        /* neighbours often have the same history */
        if (then.written != last.written && !before(me, self, then.written))
            race(r, in, lane, i, then.written, how, true);
        if (then.updated != last.updated && !before(me, self, then.updated))
            race(r, in, lane, i, then.updated, how, true);
        if (then.read != last.read && !before(me, self, then.read)) race(r, in, lane, i, then.read, how, false);
        last = then;
        if (how == READ)
            at->read = mine;
        else if (how == ATOMIC)
            at->updated = mine;
        else
            *at = (history){.written = mine};
        if (writes && step == 1 && i % 4 == 3 && i - offset >= 3) sim_history_join(&s->histories, i);
    }
}

static void check_content(run *r, const insn *in, uint32_t lane, struct shadow *s, uint32_t offset, uint32_t bytes)
{
    for (uint32_t done = 0; done < bytes; done += LANES) {
        uint32_t n = bytes - done < 32 ? bytes - done : 32, flying = sim_bits(s->flying, offset + done, n);
        uint32_t bad = flying | (~sim_bits(s->ever, offset + done, n) & sim_low_bits(n));
        if (done == 0) bad &= in->used_bytes;
        if (!bad) continue;
        uint32_t first = (uint32_t)__builtin_ctz(bad);
        if (flying >> first & 1)
            sim_report(r, in, 'W', "in-flight", (int)lane, "reads shared byte %u, whose copy nobody has waited for",
                       offset + done + first);
        else if (sim_config.check_init)
            sim_report(r, in, 'N', "uninitialised", (int)lane, "reads shared byte %u, which nothing has written",
                       offset + done + first);
        return;
    }
}

static void check_sending(run *r, const insn *in, uint32_t lane, struct shadow *s, uint32_t offset, uint32_t bytes)
{
    for (uint32_t i = offset; s->n_sending && i < offset + bytes; i++) {
        if (!s->sending[i]) continue;
        sim_report(r, in, 'W', "in-flight", (int)lane, "writes shared byte %u, which a copy under way has yet to read",
                   i);
        return;
    }
}

void sim_shadow(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes, access how)
{
    struct shadow *s = owner->shadow;
    if (sim_config.check_races) check_order(r, in, lane, owner, offset, bytes, how);
    if (how == READ || how == ATOMIC) check_content(r, in, lane, s, offset, bytes);
    if (how == READ) return;
    check_sending(r, in, lane, s, offset, bytes);
    for (uint32_t i = offset, end = offset + bytes; i < end; i += 32) {
        uint32_t n = end - i < 32 ? end - i : 32;
        sim_put_bits(s->ever, i, n, true);
        if (how != ATOMIC) sim_put_bits(s->async, i, n, false);
        sim_put_bits(s->flying, i, n, how == LANDING);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Asynchronous operations                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

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
    uint32_t thread = epoch >> CLOCK_BITS & ((1u << THREAD_BITS) - 1), clock = epoch & MOST_CLOCK;
    if ((*order)->at[thread] < clock) (*order)->at[thread] = clock;
}

void sim_shadow_landed(cta *owner, uint32_t offset, uint32_t bytes, uint32_t epoch)
{
    struct shadow *s = owner->shadow;
    if (!s) return;
    for (uint32_t i = offset, end = offset + bytes; i < end; i += 32) {
        uint32_t n = end - i < 32 ? end - i : 32;
        sim_put_bits(s->flying, i, n, false);
        sim_put_bits(s->async, i, n, true);
    }
    for (uint32_t i = offset, end = offset + bytes, step; sim_config.check_races && i < end; i += step)
        sim_history(&s->histories, i, end, &step)->written = epoch;
}

/* Written by the generic proxy without a fence for the asynchronous one since, as far as the thread knows. */
void sim_shadow_fenced(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes,
                       const char *what)
{
    struct shadow *s = owner->shadow;
    if (!s || !sim_config.check_races) return;
    uint32_t thread = r->warp->index * LANES + lane, self = first_thread(r->cta) + thread;
    const thread_order *me = &r->cta->shadow->threads[thread];
    for (uint32_t i = offset, end = offset + bytes, step; i < end; i += step) {
        const history *at = sim_history(&s->histories, i, end, &step);
        uint32_t generic = ~sim_bits(s->async, i, step) & sim_low_bits(step);
        if (!generic || fenced(me, self, threads_of(owner), at->written)) continue;
        sim_report(r, in, 'W', "proxy-fence", (int)lane,
                   "asynchronously uses %s shared byte %u, written without fence.proxy.async afterwards", what,
                   i + (uint32_t)__builtin_ctz(generic));
        return;
    }
}

/* What is read must be seen by the thread, and be behind a proxy fence; nobody may write it until it is sent. */
void sim_shadow_sending(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes)
{
    struct shadow *s = owner->shadow;
    if (!s) return;
    sim_shadow(r, in, lane, owner, offset, bytes, READ);
    sim_shadow_fenced(r, in, lane, owner, offset, bytes, "the data at");
    for (uint32_t i = offset; i < offset + bytes; i++)
        s->sending[i]++;
    s->n_sending += bytes;
}

void sim_shadow_sent(cta *owner, uint32_t offset, uint32_t bytes)
{
    struct shadow *s = owner->shadow;
    if (!s) return;
    for (uint32_t i = offset; i < offset + bytes; i++)
        s->sending[i]--;
    s->n_sending -= bytes;
}

void sim_shadow_waited(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes)
{
    if (!owner->shadow) return;
    sim_shadow(r, in, lane, owner, offset, bytes, READ);
    sim_shadow_sent(owner, offset, bytes);
}

void sim_order_tell(run *r)
{
    clock_set *told = NULL;
    sim_order_signal(r->cta, &told, sim_order_issue(r, (uint32_t)__builtin_ctz(r->mask)));
    sim_order_acquire(r, r->mask, told);
    sim_order_drop(&told);
}

void sim_order_initialised(run *r)
{
    const cta *c = r->cta;
    if (!c->shadow) return;
    ACTIVE(r)
    {
        thread_order *t = &c->shadow->threads[r->warp->index * LANES + i];
        t->initialised = t->clock;
    }
    sim_order_fence(r);
}

void sim_order_fence(run *r)
{
    const cta *c = r->cta;
    if (!c->shadow) return;
    clock_set *before = NULL, *after = NULL;
    uint32_t half = threads_of(c);
    ACTIVE(r)
    {
        thread_order *t = &c->shadow->threads[r->warp->index * LANES + i];
        t->fenced = t->clock;
        tick(t);
        if (!t->seen) continue;
        if (!after || t->seen != before) { /* lanes that knew the same have the same covered */
            sim_order_drop(&after);
            before = t->seen;
            after = new_set(before->n);
            merge(after, before);
            for (uint32_t k = 0; k < half; k++)
                after->at[half + k] = after->at[half + k] > after->at[k] ? after->at[half + k] : after->at[k];
        }
        adopt(t, after);
    }
    sim_order_drop(&after);
}
