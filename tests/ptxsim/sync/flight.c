/* Issues asynchronous operations and lands them when the schedule says so. */
#include "flight.h"

#include "checks/report.h"
#include "checks/shadow.h"
#include "checks/stores.h"
#include "exec/exec_memory.h"
#include "exec/exec_value.h"
#include "machine/fragment.h"
#include "machine/traffic.h"
#include "matrix/tcgen05.h"

#include <stdlib.h>

/* ---------------------------------------------------------------------------------------------------------------- */
/* Landing                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

static bool alive(run *r, const flight *f, const cta *c)
{
    if (!c || !c->done) return true;
    sim_report(r, f->in, 'E', "exited-cta", -1, "an asynchronous operation on shared memory of a CTA that has exited");
    return false;
}

static bool signal(run *r, flight *f)
{
    if (!f->signalled) return true;
    r->lane = (int)f->lane;
    mbarrier *m = sim_mbarrier_in(r, f->in, f->signalled, f->mbarrier);
    return m && sim_mbarrier_complete(r, f->in, f->signalled, m, f->bytes, f->epoch);
}

static void move(flight *f)
{
    const uint8_t *from = f->kind == FLY_IN ? f->global : f->kind == FLY_STORE ? f->data : f->source->smem + f->from;
    uint8_t *to = f->kind == FLY_OUT ? f->global : f->target->smem + f->to;
    memcpy(to, from, f->bytes);
}

/* A store has read its source; that counts only once its thread has waited for it. */
static void keep_source(const flight *f)
{
    bulk_groups *groups = sim_bulk_groups(f->warp);
    groups->sources = realloc(groups->sources, (groups->n + 1) * sizeof *groups->sources);
    groups->sources[groups->n++] = (bulk_source){f->in, f->source, f->lane, f->group, f->from, f->bytes};
}

static bool land(run *r, flight *f)
{
    if (f->kind == FLY_TENSOR) return sim_tensor_run(r, f->signalled);
    if (f->kind == FLY_ARRIVE) return sim_tensor_arrive(r, f);
    if (!alive(r, f, f->target) || !alive(r, f, f->source) || !alive(r, f, f->signalled)) return false;
    if (f->kind == FLY_TILE_IN || f->kind == FLY_TILE_OUT) {
        if (f->kind == FLY_TILE_OUT) keep_source(f);
        if (!sim_tile_land(r, f)) return false;
    } else {
        move(f);
        if (f->kind == FLY_OUT)
            keep_source(f);
        else if (f->source)
            sim_shadow_sent(f->source, f->from, f->bytes);
        if (f->target) sim_shadow_landed(f->target, f->to, f->bytes, f->epoch);
    }
    return signal(r, f);
}

void sim_flight_land(run *r, cluster *c)
{
    uint32_t at = (uint32_t)(sim_random(&r->random) % c->n_flights);
    flight f = c->flights[at];
    if ((f.kind == FLY_TENSOR || f.kind == FLY_ARRIVE) && !sim_tensor_ready(r, &f)) return;
    c->flights[at] = c->flights[--c->n_flights];
    r->warp = f.warp;
    r->cta = f.warp->cta;
    if (!land(r, &f)) return;
    r->stats.async_bytes += f.bytes;
    if (f.kind != FLY_ACROSS && f.kind != FLY_STORE) r->stats.tma_bytes += f.bytes;
    sim_wake(f.warp->cta, W_ASYNC, f.warp->index, false);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Taking off                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

bool sim_flight_start(run *r, const insn *in, uint32_t lane, flight *f)
{
    cluster *c = r->cta->cluster;
    f->in = in;
    f->warp = r->warp;
    f->lane = lane;
    if (f->epoch == 0) f->epoch = sim_order_issue(r, lane);
    if (c->n_flights == c->most_flights) {
        c->most_flights = c->most_flights ? 2 * c->most_flights : 16;
        c->flights = realloc(c->flights, c->most_flights * sizeof *c->flights);
    }
    c->flights[c->n_flights++] = *f;
    return true;
}

bool sim_take_mbarrier(run *r, const insn *in, uint32_t lane, uint64_t address, flight *f)
{
    cta *owner = NULL;
    mbarrier *m = sim_mbarrier_at(r, in, lane, CLUSTER, address, &owner);
    if (!m) return false;
    if (owner == r->cta) sim_shadow_signalling(r, in, lane, owner, m->offset);
    f->signalled = owner;
    f->mbarrier = m->offset;
    return true;
}

/* Shared memory that the operation will write: poison until then. */
bool sim_take_target(run *r, const insn *in, uint32_t lane, uint64_t address, flight *f)
{
    uint8_t *to = sim_locate(r, in, lane, CLUSTER, address, f->bytes, LANDING);
    if (!to) return false;
    memset(to, POISON_BYTE, f->bytes);
    f->target = r->cta->cluster->ctas[address >> RANK_SHIFT];
    f->to = (uint32_t)address & ~RANK_MASK;
    return true;
}

/* Shared memory that the operation will read: nobody may write it until then. */
bool sim_take_source(run *r, const insn *in, uint32_t lane, uint64_t address, uint32_t bytes, flight *f)
{
    f->source = sim_owner(r, in, lane, SHARED, address, bytes, READ);
    f->from = (uint32_t)address & ~RANK_MASK;
    if (f->source) sim_shadow_sending(r, in, lane, f->source, f->from, bytes);
    return f->source != NULL;
}

static bool bad_size(run *r, const insn *in, uint32_t lane, uint64_t shared, uint64_t other, uint32_t bytes)
{
    if (bytes && bytes % 16 == 0 && shared % 16 == 0 && other % 16 == 0) return false;
    sim_report(r, in, 'E', "misaligned", (int)lane,
               "a bulk copy of %u bytes between 0x%llx and 0x%llx: all want to be multiples of 16", bytes,
               (unsigned long long)shared, (unsigned long long)other);
    return true;
}

#define PARITY ((uint64_t)1 << RANK_SHIFT)

/* The mbarrier is the target's CTA's, with cta_group::2 that of its pair. */
static bool signals_there(run *r, const insn *in, uint32_t lane, uint64_t to, uint64_t barrier)
{
    uint64_t differ = (to ^ barrier) >> RANK_SHIFT;
    bool pair = in->fn == sim_exec_tile && in->flags & TILE_PAIR;
    if ((pair ? differ & ~(uint64_t)1 : differ) == 0) return true;
    sim_report(r, in, 'E', "mbarrier", (int)lane, "copies to CTA rank %llu, but its mbarrier is that of rank %llu",
               (unsigned long long)(to >> RANK_SHIFT), (unsigned long long)(barrier >> RANK_SHIFT));
    return false;
}

/* Inwards to one CTA, or to the same places in each CTA of a mask. */
bool sim_deliver(run *r, const insn *in, uint32_t i, uint64_t to, uint64_t barrier, uint32_t mask, flight *f)
{
    if (!mask && !signals_there(r, in, i, to, barrier)) return false;
    if (!mask)
        return sim_take_mbarrier(r, in, i, barrier, f) && sim_take_target(r, in, i, to, f) &&
               sim_flight_start(r, in, i, f);
    f->epoch = sim_order_issue(r, i);
    for (uint32_t rank = 0; rank < 16; rank++) {
        uint64_t bits = (uint64_t)rank << RANK_SHIFT;
        if (!(mask >> rank & 1)) continue;
        uint64_t signalled = (barrier & ~(uint64_t)RANK_MASK) | bits;
        if (in->fn == sim_exec_tile && in->flags & TILE_PAIR) /* of that pair, the one with the barrier's parity */
            signalled = (signalled & ~PARITY) | (barrier & PARITY);
        if (!sim_take_mbarrier(r, in, i, signalled, f)) return false;
        if (!sim_take_target(r, in, i, (to & ~(uint64_t)RANK_MASK) | bits, f)) return false;
        if (!sim_flight_start(r, in, i, f)) return false;
        f->again = true;
    }
    return true;
}

/* All of a copy's global memory: both ends lie in live memory, and then L2 is asked for what is between them. */
static uint8_t *whole(run *r, const insn *in, uint32_t lane, uint64_t address, uint32_t bytes, access how)
{
    uint8_t *at = sim_locate(r, in, lane, GLOBAL, address, 16, how);
    if (!at || !sim_locate(r, in, lane, GLOBAL, address + bytes - 16, 16, how)) return NULL;
    if (address >= r->lo) sim_traffic(r, address, bytes, how);
    if (how == READ) sim_stores_check(r, in, lane, address, bytes);
    if (how == WRITE) sim_stored_async(r, address, bytes);
    return at;
}

/* list: the source's address, the size, inwards also the mbarrier's address and a mask of CTAs or NONE. */
static bool issue_bulk(run *r, const insn *in, uint32_t i)
{
    uint64_t to = sim_address_at(r, in, 1, i), from = sim_listed_address(r, in, 0, i);
    flight f = {.kind = (flight_kind)in->op, .bytes = (uint32_t)sim_lane(r, in->list[2], 4, i)};
    if (bad_size(r, in, i, to, from, f.bytes)) return false;
    if (f.kind == FLY_OUT) {
        f.global = whole(r, in, i, to, f.bytes, WRITE);
        if (!f.global) return false;
    }
    if (f.kind == FLY_IN) {
        f.global = whole(r, in, i, from, f.bytes, READ);
        if (!f.global) return false;
    } else if (!sim_take_source(r, in, i, from, f.bytes, &f)) {
        return false;
    }
    if (f.kind == FLY_OUT) {
        f.group = sim_bulk_groups(r->warp)->committed[i];
        return sim_flight_start(r, in, i, &f);
    }
    uint32_t mask = in->list[5] == NONE ? 0 : (uint32_t)sim_lane(r, in->list[5], 2, i);
    return sim_deliver(r, in, i, to, sim_listed_address(r, in, 3, i), mask, &f);
}

step sim_exec_bulk(run *r, const insn *in)
{
    ACTIVE(r)
    {
        if (!issue_bulk(r, in, i)) return STEP_FAIL;
    }
    return STEP_SLEEP;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Bulk groups                                                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

bulk_groups *sim_bulk_groups(warp *w)
{
    if (!w->bulk) w->bulk = calloc(1, sizeof *w->bulk);
    return w->bulk;
}

step sim_exec_bulk_commit(run *r, const insn *in)
{
    (void)in;
    ACTIVE(r) sim_bulk_groups(r->warp)->committed[i]++;
    return STEP_NEXT;
}

static bool due(const run *r, const insn *in, uint32_t lane, uint32_t group)
{
    const bulk_groups *groups = r->warp->bulk;
    return r->mask >> lane & 1 && (int64_t)group < (int64_t)groups->committed[lane] - in->imm;
}

/* The sources of groups that were waited for may be written again. */
static void release_sources(run *r, const insn *in)
{
    bulk_groups *groups = r->warp->bulk;
    uint32_t kept = 0;
    for (uint32_t k = 0; k < groups->n; k++) {
        bulk_source *s = &groups->sources[k];
        if (due(r, in, s->lane, s->group))
            sim_shadow_waited(r, s->in, s->lane, s->cta, s->from, s->bytes);
        else
            groups->sources[kept++] = *s;
    }
    groups->n = kept;
}

/* imm: how many groups may be under way. */
step sim_exec_bulk_wait(run *r, const insn *in)
{
    const cluster *c = r->cta->cluster;
    sim_bulk_groups(r->warp);
    for (uint32_t k = 0; k < c->n_flights; k++) {
        const flight *f = &c->flights[k];
        if (f->warp != r->warp || f->signalled || !due(r, in, f->lane, f->group)) continue;
        r->fragment->state = WAITING;
        r->fragment->reason = W_ASYNC;
        r->fragment->what = r->warp->index;
        return STEP_WAIT;
    }
    release_sources(r, in);
    return STEP_NEXT;
}

/* A CTA that has no more threads: its shared memory goes. */
void sim_bulk_exit(run *r)
{
    for (uint32_t i = 0; i < r->cta->n_warps; i++) {
        const bulk_groups *groups = r->cta->warps[i].bulk;
        if (!groups || !groups->n) continue;
        sim_report(r, groups->sources[0].in, 'E', "exited-cta", -1,
                   "warp %u has not waited until this has read shared memory, and its CTA exits", i);
        return;
    }
}

void sim_bulk_close(warp *w)
{
    if (w->bulk) free(w->bulk->sources);
    free(w->bulk);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* st.async: list the registers and the mbarrier's address, o[1] the target                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

step sim_exec_store_async(run *r, const insn *in)
{
    ACTIVE(r)
    {
        flight f = {.kind = FLY_STORE, .bytes = (uint32_t)in->size * in->vec};
        uint64_t to = sim_address_at(r, in, 1, i), barrier = sim_listed_address(r, in, in->vec, i);
        for (uint32_t k = 0; k < in->vec; k++) {
            uint64_t value = sim_lane(r, in->list[k], in->reg_size, i);
            memcpy(f.data + k * in->size, &value, in->size);
        }
        if (!sim_take_mbarrier(r, in, i, barrier, &f) || !sim_take_target(r, in, i, to, &f)) return STEP_FAIL;
        sim_flight_start(r, in, i, &f);
    }
    return STEP_SLEEP;
}

/* cp.async.mbarrier.arrive: when the thread's copies have landed, which is now: they are late enough. */
step sim_exec_copy_arrive(run *r, const insn *in)
{
    insn wait = {.imm = -1};
    step waited = sim_exec_wait(r, &wait);
    if (waited == STEP_FAIL) return STEP_FAIL;
    ACTIVE(r)
    {
        cta *owner = NULL;
        mbarrier *m = sim_mbarrier_at(r, in, i, in->space, sim_address_at(r, in, 1, i), &owner);
        if (!m) return STEP_FAIL;
    }
    return sim_exec_mbarrier(r, in);
}
