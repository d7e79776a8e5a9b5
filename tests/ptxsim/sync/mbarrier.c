/* Executes mbarrier instructions, and finds misuse of the objects. */
#include "mbarrier.h"

#include "checks/report.h"
#include "checks/scopes.h"
#include "checks/shadow.h"
#include "exec/exec_value.h"
#include "machine/fragment.h"
#include "sync/flight.h"

#include <stdlib.h>

#define MOST_BYTES ((1 << 20) - 1)
#define MOST_ARRIVALS ((1 << 20) - 1)

static uint64_t mark_of(uint32_t offset) { return 0x6d62617272696572u + (uint64_t)offset * 0x100000001b3u; }

static mbarrier *find(const cta *c, uint32_t offset)
{
    for (uint32_t i = 0; i < c->n_mbarriers; i++)
        if (c->mbarriers[i].offset == offset) return &c->mbarriers[i];
    return NULL;
}

mbarrier *sim_mbarrier_in(run *r, const insn *in, cta *owner, uint32_t offset)
{
    mbarrier *m = find(owner, offset);
    uint64_t mark = mark_of(offset);
    if (!m || !m->valid)
        sim_report(r, in, 'E', "mbarrier", r->lane, "there is no mbarrier at shared byte %u of CTA rank %u", offset,
                   owner->rank);
    else if (memcmp(owner->smem + offset, &mark, sizeof mark) != 0)
        sim_report(r, in, 'E', "mbarrier", r->lane, "an ordinary store has destroyed the mbarrier at shared byte %u",
                   offset);
    else
        return m;
    return NULL;
}

mbarrier *sim_mbarrier_at(run *r, const insn *in, uint32_t lane, space space, uint64_t address, cta **owner)
{
    if (space == GENERIC) {
        if (address >> WINDOW_SHIFT != 1) {
            sim_report(r, in, 'E', "mbarrier", (int)lane, "an mbarrier at 0x%llx, which is no shared address",
                       (unsigned long long)address);
            return NULL;
        }
        address &= SHARED_WINDOW - 1;
        space = CLUSTER;
    }
    if (address % 8) {
        sim_report(r, in, 'E', "misaligned", (int)lane, "an mbarrier at 0x%llx", (unsigned long long)address);
        return NULL;
    }
    r->lane = (int)lane;
    *owner = sim_owner(r, in, lane, space, address, 8, ATOMIC);
    if (!*owner) return NULL;
    uint32_t offset = (uint32_t)address & ~RANK_MASK;
    mbarrier *m = sim_mbarrier_in(r, in, *owner, offset);
    if (m && (*owner)->shadow) sim_shadow_mbarrier(r, in, lane, *owner, offset);
    return m;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Phases                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

static void settle(run *r, cta *owner, mbarrier *m)
{
    if (m->pending || m->bytes) return;
    m->phase++;
    m->pending = (int32_t)m->expected;
    sim_order_drop(&m->done);
    sim_order_drop(&m->far_done);
    m->done = m->order;
    m->far_done = m->far;
    m->order = m->far = NULL;
    r->stats.barriers++;
    r->idle_steps = 0;
    for (uint32_t i = 0; i < owner->cluster->n; i++)
        sim_wake(owner->cluster->ctas[i], W_MBARRIER, (uint64_t)owner->rank << 32 | m->offset, false);
}

static bool expect(run *r, const insn *in, uint32_t lane, mbarrier *m, int64_t bytes)
{
    int64_t sum = m->bytes + bytes;
    if (sum <= MOST_BYTES && sum >= -MOST_BYTES) return m->bytes = (int32_t)sum, true;
    sim_report(r, in, 'E', "transaction-count", (int)lane, "%lld bytes outstanding at the mbarrier at shared byte %u",
               (long long)sum, m->offset);
    return false;
}

static bool arrive(run *r, const insn *in, uint32_t lane, mbarrier *m, uint32_t count)
{
    if ((int64_t)m->pending - count >= 0 && count) return m->pending -= (int32_t)count, true;
    sim_report(r, in, 'E', "over-arrival", (int)lane,
               "%u arrivals at the mbarrier at shared byte %u, whose phase %llu waits for %d of %u", count, m->offset,
               (unsigned long long)m->phase, m->pending, m->expected);
    return false;
}

bool sim_mbarrier_complete(run *r, const insn *in, cta *owner, mbarrier *m, uint32_t bytes, uint32_t epoch)
{
    if (!expect(r, in, 0, m, -(int64_t)bytes)) return false;
    const bool far = sim_config.check_scopes && in->fn == sim_exec_store_async && owner != r->cta;
    sim_order_landed(owner, far ? &m->far : &m->order, epoch);
    settle(r, owner, m);
    return true;
}

bool sim_mbarrier_arrive(run *r, const insn *in, uint32_t lane, cta *owner, mbarrier *m)
{
    if (!arrive(r, in, lane, m, 1)) return false;
    settle(r, owner, m);
    return true;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Instructions                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

static void drop(mbarrier *m)
{
    sim_order_drop(&m->order);
    sim_order_drop(&m->done);
    sim_order_drop(&m->far);
    sim_order_drop(&m->far_done);
}

static bool initialise(run *r, const insn *in, uint32_t lane, uint64_t address, uint32_t count)
{
    uint8_t *at = sim_locate(r, in, lane, in->space, address, 8, WRITE);
    if (!at) return false;
    if (count < 1 || count > MOST_ARRIVALS) {
        sim_report(r, in, 'E', "mbarrier", (int)lane, "initialised for %u arrivals", count);
        return false;
    }
    cta *c = r->cta;
    uint32_t offset = (uint32_t)(at - c->smem);
    mbarrier *m = find(c, offset);
    if (m && m->valid && (m->pending != (int32_t)m->expected || m->bytes))
        sim_report(r, in, 'W', "mbarrier-reuse", (int)lane,
                   "initialised again amid a phase: %d arrivals, %d bytes to come", m->pending, m->bytes);
    if (m && m->commits) /* inval does not call them back */
        sim_report(r, in, 'W', "mbarrier-reuse", (int)lane, "initialised again with %u tcgen05.commit under way",
                   m->commits);
    const bool settled = m && m->valid && m->pending == (int32_t)m->expected && !m->bytes && !m->commits;
    const uint64_t mark = mark_of(offset);
    if (settled && memcmp(at, &mark, sizeof mark) == 0)
        sim_report(r, in, 'W', "mbarrier-reuse", (int)lane, "initialised again without mbarrier.inval");
    if (!m) {
        c->mbarriers = realloc(c->mbarriers, (c->n_mbarriers + 1) * sizeof *c->mbarriers);
        m = &c->mbarriers[c->n_mbarriers++];
        *m = (mbarrier){0};
    }
    drop(m);
    const uint32_t commits = m->commits;
    *m = (mbarrier){.offset = offset, .expected = count, .pending = (int32_t)count, .commits = commits, .valid = true};
    memcpy(at, &mark, sizeof mark);
    return true;
}

/* Only the CTA of an mbarrier waits there, so a release of that CTA tells it all. Others must release to the cluster.
 */
static void tell(run *r, const insn *in, const cta *owner, mbarrier *m)
{
    const bool far = sim_config.check_scopes && owner != r->cta;
    if (in->flags & MB_RELAXED || (far && !(in->flags & MB_CLUSTER)))
        sim_order_arrive_weakly(r, &m->order, !(in->flags & MB_RELAXED));
    else
        sim_order_arrive(r, far ? &m->far : &m->order, far ? in->place : 0);
    sim_scope_executed(r, in, 1, 0);
}

/* o[0] the state (NONE: not wanted), o[1] the address, o[2] a count or bytes (NONE: 1). */
static bool one_lane(run *r, const insn *in, uint32_t i)
{
    uint64_t address = sim_address_at(r, in, 1, i), state = 0;
    uint32_t number = in->o[2] == NONE ? 1 : (uint32_t)sim_lane(r, in->o[2], 4, i), all = r->mask;
    if (in->op == MB_INIT) return initialise(r, in, i, address, number);
    cta *owner = NULL;
    mbarrier *m = sim_mbarrier_at(r, in, i, in->space, address, &owner);
    if (!m) return false;
    bool fine = true, arrives = in->op == MB_ARRIVE || in->op == MB_DROP;
    state = m->phase << 32 | (uint32_t)m->pending;
    r->mask = 1u << i;
    if (arrives) tell(r, in, owner, m);
    r->mask = all;
    if (in->flags & MB_WITH_BYTES || in->op == MB_EXPECT) fine = expect(r, in, i, m, number);
    if (in->op == MB_COMPLETE) fine = expect(r, in, i, m, -(int64_t)number);
    uint32_t count = in->flags & MB_WITH_BYTES ? 1 : number;
    if (in->op == MB_DROP) m->expected -= count;
    if (fine && arrives) fine = arrive(r, in, i, m, count);
    if (in->op == MB_INVAL) m->valid = false;
    if (fine && in->op != MB_INVAL) settle(r, owner, m);
    if (in->o[0] != NONE) sim_put_lane(r, in->o[0], 8, i, state);
    return fine;
}

step sim_exec_mbarrier(run *r, const insn *in)
{
    ACTIVE(r)
    {
        if (!one_lane(r, in, i)) return STEP_FAIL;
    }
    return STEP_SLEEP;
}

/* The CTA's mbarriers that bytes are under way to. */
static void note_stages(run *r)
{
    uint32_t stages = 0;
    for (uint32_t i = 0; i < r->cta->n_mbarriers; i++)
        stages += r->cta->mbarriers[i].valid && r->cta->mbarriers[i].bytes > 0;
    if (!stages) return;
    r->stats.data_waits++;
    r->stats.stages += stages;
}

/* By lanes that have found the phase complete. */
static void acquire(run *r, const insn *in, uint32_t lanes, const mbarrier *m)
{
    if (!m) return;
    if (in->is_signed) {
        sim_order_acquire_relaxed(r, lanes, m->done);
        return;
    }
    sim_order_acquire(r, lanes, m->done);
    if (in->flags & MB_CLUSTER)
        sim_order_acquire(r, lanes, m->far_done);
    else
        sim_order_acquire_narrow(r, lanes, m->far_done);
    const uint32_t times = (uint32_t)__builtin_popcount(lanes);
    sim_scope_executed(r, in, times, m->far_done ? times : 0);
}

/* p, [address], state or parity (flags); op: 't' may wait, 'n' only asks. A wait may also give up, as hardware does. */
step sim_exec_mbarrier_wait(run *r, const insn *in)
{
    uint32_t done = 0, acquiring = 0;
    const mbarrier *known = NULL; /* lanes mostly wait for the same barrier */
    uint64_t what = 0;
    note_stages(r);
    ACTIVE(r)
    {
        cta *owner = NULL;
        mbarrier *m = sim_mbarrier_at(r, in, i, in->space, sim_address_at(r, in, 1, i), &owner);
        if (!m) return STEP_FAIL;
        uint64_t given = sim_lane(r, in->o[2], in->size, i);
        bool complete = in->flags & WAIT_PARITY ? (m->phase & 1) != (given & 1) : m->phase != given >> 32;
        done |= (uint32_t)complete << i;
        what = (uint64_t)owner->rank << 32 | m->offset;
        if (!complete) continue;
        if (m != known) acquire(r, in, acquiring, known);
        acquiring = m == known ? acquiring | 1u << i : 1u << i;
        known = m;
    }
    acquire(r, in, acquiring, known);
    if (done || in->op != 't' || sim_random(&r->random) % 4 == 0) {
        put_predicate(r, in->o[0], done);
        return STEP_SLEEP;
    }
    r->fragment->state = WAITING;
    r->fragment->reason = W_MBARRIER;
    r->fragment->what = what;
    r->stats.slept[r->warp->index]++;
    return STEP_WAIT;
}

void sim_mbarriers_close(cta *c)
{
    for (uint32_t i = 0; i < c->n_mbarriers; i++)
        drop(&c->mbarriers[i]);
    free(c->mbarriers);
}

void sim_mbarrier_describe(const cta *c, uint32_t offset, char *to, size_t size)
{
    const mbarrier *m = find(c, offset);
    if (!m)
        snprintf(to, size, "mbarrier at shared byte %u", offset);
    else
        snprintf(to, size, "mbarrier at shared byte %u of CTA rank %u, phase %llu: %d of %u arrivals, %d bytes to come",
                 offset, c->rank, (unsigned long long)m->phase, m->pending, m->expected, m->bytes);
}
