/* Checks that what is read of shared memory was written, and that synchronisation orders the accesses. */
#include "shadow.h"
#include "clocks.h"
#include "exec/exec.h"
#include "exec/exec_memory.h"
#include "flags.h"
#include "report.h"
#include "scopes.h"

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
        sim_order_drop(&s->threads[i].seen), sim_flags_forget(s->threads[i].reader);
    for (uint32_t i = 0; i < MAX_BARRIERS; i++)
        sim_order_drop(&c->barriers[i].order);
    sim_histories_close(&s->histories);
    free(s->threads), free(s->ever), free(s->flying), free(s->sending), free(s->async), free(s);
    c->shadow = NULL;
}

/* Lanes of a warp that store the same to the same bytes at once: whichever comes last, that is there. */
static bool is_same_store(const run *r, const insn *in, uint32_t lane, uint32_t epoch)
{
    uint32_t thread = thread_in(epoch) - first_thread(r->cta);
    return thread / LANES == r->warp->index && thread_in(epoch) >= first_thread(r->cta) &&
           sim_same_store(r, in, lane, thread % LANES);
}

static void race(run *r, const insn *in, uint32_t lane, uint32_t offset, uint32_t epoch, access how, bool was_write)
{
    static const char *const verbs[] = {"reads", "writes", "updates", "copies to"};
    uint32_t thread = thread_in(epoch), n = r->cta->n_threads;
    sim_report(r, in, 'W', "race", (int)lane,
               "%s shared byte %u, which thread %u of CTA rank %u %s without synchronisation in between", verbs[how],
               offset, thread % n, thread / n, was_write ? "wrote" : "read");
}

/* Who accesses memory. */
typedef enum party { BY_THREAD, BY_MBARRIER, BY_COPY } party;

static bool is_async(const struct shadow *s, uint32_t i, uint32_t bytes)
{
    return sim_bits(s->async, i, bytes) == sim_low_bits(bytes);
}

/* Whether an access may come behind what happened at an epoch; `weakly`: behind what needs no release to reach it. */
static bool may_follow(run *r, const thread_order *me, uint32_t self, uint32_t epoch, bool weakly)
{
    if (!knows(me, self, epoch)) return weakly && sim_order_weakly_known(r->cta, me, epoch);
    if (weakly || !sim_config.check_scopes || !epoch || thread_in(epoch) == self || !me->seen) return true;
    const uint32_t place = place_in(me->seen->at[thread_in(epoch)]);
    if (place) sim_scope_needed(r, place);
    return true;
}

/* Who knows of an mbarrier's initialisation may use it, whatever else its bytes went through. */
static bool may_follow_write(run *r, const thread_order *me, uint32_t self, uint32_t epoch, party by, bool landed)
{
    if (by == BY_MBARRIER && sim_order_covered(r->cta, me, self, COVERED_INITS, epoch)) return true;
    if (may_follow(r, me, self, epoch, by == BY_COPY && landed)) return true;
    return by == BY_COPY && sim_config.fenced_stores && sim_order_covered(r->cta, me, self, COVERED_OWN, epoch);
}

static void check_order(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes, access how,
                        party by)
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
        if (then.written != last.written && !may_follow_write(r, me, self, then.written, by, is_async(s, i, step)) &&
            !(how == WRITE && is_same_store(r, in, lane, then.written)))
            race(r, in, lane, i, then.written, how, true);
        if (then.updated != last.updated && !may_follow(r, me, self, then.updated, false))
            race(r, in, lane, i, then.updated, how, true);
        if (then.read != last.read && !may_follow(r, me, self, then.read, true))
            race(r, in, lane, i, then.read, how, false);
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

static void note(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes, access how,
                 party by)
{
    struct shadow *s = owner->shadow;
    if (sim_config.check_races) check_order(r, in, lane, owner, offset, bytes, how, by);
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

void sim_shadow(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes, access how)
{
    note(r, in, lane, owner, offset, bytes, how, how == LANDING ? BY_COPY : BY_THREAD);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Asynchronous operations                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

void sim_shadow_mbarrier(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset)
{
    if (sim_config.check_races) check_order(r, in, lane, owner, offset, 8, ATOMIC, BY_MBARRIER);
    check_content(r, in, lane, owner->shadow, offset, 8);
    check_sending(r, in, lane, owner->shadow, offset, 8);
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
static void check_covered(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes,
                          bool mbarrier)
{
    struct shadow *s = owner->shadow;
    if (!s || !sim_config.check_races) return;
    uint32_t thread = r->warp->index * LANES + lane, self = first_thread(r->cta) + thread;
    const thread_order *me = &r->cta->shadow->threads[thread];
    for (uint32_t i = offset, end = offset + bytes, step; i < end; i += step) {
        const history *at = sim_history(&s->histories, i, end, &step);
        uint32_t generic = ~sim_bits(s->async, i, step) & sim_low_bits(step), epoch = at->written;
        covered kind = thread_in(epoch) / owner->n_threads == owner->rank ? COVERED_OWN : COVERED_PEERS;
        if (!generic || sim_order_covered(r->cta, me, self, kind, epoch)) continue;
        if (mbarrier && sim_order_covered(r->cta, me, self, COVERED_INITS, epoch)) continue;
        sim_report(r, in, 'W', "proxy-fence", (int)lane,
                   "asynchronously uses %s shared byte %u, written without fence.proxy.async of it afterwards",
                   mbarrier ? "the mbarrier at" : "the data at", i + (uint32_t)__builtin_ctz(generic));
        return;
    }
}

void sim_shadow_signalling(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset)
{
    check_covered(r, in, lane, owner, offset, 8, true);
}

/* What is read must be seen by the thread, and be behind a proxy fence; nobody may write it until it is sent. */
void sim_shadow_sending(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes)
{
    struct shadow *s = owner->shadow;
    if (!s) return;
    note(r, in, lane, owner, offset, bytes, READ, BY_COPY);
    check_covered(r, in, lane, owner, offset, bytes, false);
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
    note(r, in, lane, owner, offset, bytes, READ, BY_COPY);
    sim_shadow_sent(owner, offset, bytes);
}
