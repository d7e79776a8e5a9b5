/* Executes bar and barrier, __syncwarp and memory fences.
 *
 * o[1], o[2]: the barrier's number and its count of threads (NONE: all of the CTA). op: 's' waits, 'a' only arrives. */
#include "barrier.h"

#include "checks/flags.h"
#include "checks/report.h"
#include "checks/shadow.h"
#include "exec/exec_value.h"
#include "machine/fragment.h"

static uint32_t expected_by(const cta *c, const named_barrier *b)
{
    return b->expected == NONE ? c->live : b->expected;
}

static void finish(run *r, named_barrier *b, uint32_t number)
{
    sim_order_barrier(r->cta, b, number);
    b->arrived = 0;
    b->expected = 0;
    b->generation++;
    r->stats.barriers++;
    r->idle_steps = 0;
    sim_wake(r->cta, W_BARRIER, number, true);
}

static bool bad(run *r, const insn *in, const named_barrier *b, uint32_t number, uint32_t count)
{
    if (number >= MAX_BARRIERS) {
        sim_report(r, in, 'E', "barrier-number", -1, "barrier %u, there are %d", number, MAX_BARRIERS);
        return true;
    }
    if (count != NONE && (count == 0 || count % LANES || count > r->cta->n_threads)) {
        sim_report(r, in, 'E', "barrier-count", -1, "barrier %u for %u threads in a CTA of %u", number, count,
                   r->cta->n_threads);
        return true;
    }
    if (b->expected && b->expected != count) {
        sim_report(r, in, 'E', "barrier-count", -1, "barrier %u for %d threads, where others came for %d", number,
                   (int)count, (int)b->expected);
        return true;
    }
    return false;
}

step sim_exec_bar(run *r, const insn *in)
{
    uint32_t first = (uint32_t)__builtin_ctz(r->mask);
    uint32_t number = (uint32_t)sim_lane(r, in->o[1], 4, first);
    uint32_t count = in->o[2] == NONE ? NONE : (uint32_t)sim_lane(r, in->o[2], 4, first);
    named_barrier *b = &r->cta->barriers[number % MAX_BARRIERS];
    if (bad(r, in, b, number, count)) return STEP_FAIL;
    if (in->whole_warp && r->mask != r->warp->live)
        sim_report(r, in, 'W', "diverged-aligned", (int)first, "lanes %08x of %08x come to an aligned barrier", r->mask,
                   r->warp->live);
    sim_order_arrive(r, &b->order, 0);
    b->expected = count;
    b->arrived += (uint32_t)__builtin_popcount(r->mask);
    uint32_t expected = expected_by(r->cta, b);
    if (b->arrived > expected) {
        sim_report(r, in, 'E', "barrier-count", (int)first, "%u threads come to barrier %u for %u", b->arrived, number,
                   expected);
        return STEP_FAIL;
    }
    fragment *f = r->fragment;
    f->what = number;
    if (b->arrived == expected) {
        if (in->op == 's') f->state = WAITING, f->reason = W_BARRIER; /* woken with the others */
        finish(r, b, number);
        return in->op == 's' ? STEP_WAIT : STEP_NEXT;
    }
    if (in->op == 'a') return STEP_NEXT;
    f->state = WAITING;
    f->reason = W_BARRIER;
    return STEP_WAIT;
}

void sim_barriers_after_exit(run *r)
{
    for (uint32_t i = 0; i < MAX_BARRIERS; i++) {
        named_barrier *b = &r->cta->barriers[i];
        if (b->expected == NONE && b->arrived && b->arrived >= r->cta->live) finish(r, b, i);
    }
}

/* bar.warp.sync */
step sim_exec_warp_sync(run *r, const insn *in)
{
    uint32_t members = 0;
    ACTIVE(r) members |= (uint32_t)sim_lane(r, in->o[0], 4, i);
    if (!sim_gather(r, members)) return STEP_WAIT;
    sim_order_warp(r, r->mask);
    return STEP_NEXT;
}

step sim_exec_fence(run *r, const insn *in)
{
    sim_flags_fence(r, in);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return STEP_SLEEP; /* a good moment for the others */
}
