/* Executes clusterlaunchcontrol: asks for a cluster that has not begun, and reads the answer. */
#include "cancel.h"

#include "flight.h"
#include "checks/report.h"
#include "exec/exec_value.h"

/* The answer, sixteen bytes that only this file understands. */
typedef struct answer {
    uint32_t mark, first[3];
} answer;

#define CANCELLED 0x636c6361u
#define NONE_LEFT 0x6e6f6e65u

static answer ask(launch *l)
{
    dims c = l->cluster, clusters = {l->grid.x / c.x, l->grid.y / c.y, l->grid.z / c.z};
    uint64_t number = __atomic_fetch_add(&l->next_cluster, 1, __ATOMIC_RELAXED);
    if (number >= (uint64_t)clusters.x * clusters.y * clusters.z) {
        uint32_t poison = 0x01010101u * POISON_BYTE;
        return (answer){NONE_LEFT, {poison, poison, poison}};
    }
    uint32_t x = (uint32_t)(number % clusters.x), y = (uint32_t)(number / clusters.x % clusters.y);
    return (answer){CANCELLED, {x * c.x, y * c.y, (uint32_t)(number / clusters.x / clusters.y) * c.z}};
}

static uint64_t shared_address(const insn *in, uint64_t address)
{
    return in->space == GENERIC ? address & (SHARED_WINDOW - 1) : address;
}

/* [answer], [mbarrier] of this CTA; flags: the same places of all CTAs of the cluster. */
static bool issue(run *r, const insn *in, uint32_t lane)
{
    cta *c = r->cta;
    uint64_t to = sim_address_at(r, in, 1, lane), barrier = sim_listed_address(r, in, 0, lane);
    flight f = {.kind = FLY_STORE, .bytes = sizeof(answer)};
    if (c->cancelled_enough) {
        sim_report(r, in, 'E', "cancel", (int)lane, "asks again after it was told that no cluster is left");
        return false;
    }
    to = shared_address(in, to);
    barrier = shared_address(in, barrier);
    if (to >> RANK_SHIFT != c->rank || barrier >> RANK_SHIFT != c->rank) {
        sim_report(r, in, 'E', "out-of-bounds", (int)lane, "the answer to 0x%llx, the barrier at 0x%llx: not its own",
                   (unsigned long long)to, (unsigned long long)barrier);
        return false;
    }
    answer got = ask(r->launch);
    memcpy(f.data, &got, sizeof got);
    uint32_t all = (1u << c->cluster->n) - 1;
    return sim_deliver(r, in, lane, to, barrier, in->flags ? all : 0, &f);
}

step sim_exec_try_cancel(run *r, const insn *in)
{
    ACTIVE(r)
    {
        if (!issue(r, in, i)) return STEP_FAIL;
    }
    return STEP_SLEEP;
}

static bool read_answer(run *r, const insn *in, uint32_t lane, answer *a)
{
    memcpy(a, (const uint8_t *)at(r, in->o[1]) + lane * sizeof *a, sizeof *a);
    if (a->mark == CANCELLED || a->mark == NONE_LEFT) return true;
    sim_report(r, in, 'E', "cancel", (int)lane, "0x%08x.. is no answer of clusterlaunchcontrol.try_cancel", a->mark);
    return false;
}

step sim_exec_is_cancelled(run *r, const insn *in)
{
    uint32_t bits = 0;
    ACTIVE(r)
    {
        answer a;
        if (!read_answer(r, in, i, &a)) return STEP_FAIL;
        bits |= (uint32_t)(a.mark == CANCELLED) << i;
        if (a.mark == NONE_LEFT) r->cta->cancelled_enough = true;
    }
    return put_predicate(r, in->o[0], bits);
}

/* list: x, y, z and one more, or one of them from op on. */
step sim_exec_first_cta(run *r, const insn *in)
{
    ACTIVE(r)
    {
        answer a;
        if (!read_answer(r, in, i, &a)) return STEP_FAIL;
        if (a.mark == NONE_LEFT) {
            sim_report(r, in, 'E', "cancel", (int)i, "asks for the first CTA of a cluster that it did not get");
            return STEP_FAIL;
        }
        for (uint32_t k = 0; k < in->n_list && k + in->op < 3; k++)
            if (in->list[k] != NONE) sim_put_lane(r, in->list[k], 4, i, a.first[k + in->op]);
    }
    return STEP_NEXT;
}
