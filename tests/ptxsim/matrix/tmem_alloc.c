/* Executes tcgen05.alloc, dealloc and relinquish_alloc_permit.
 *
 * With cta_group::2 a warp of each CTA of the pair comes, and both get the same columns. The first may go on before the
 * second has come, as the seed says. o[1]: the address, o[2]: the number of columns; of dealloc o[0]: the tensor
 * memory's address. */
#include "tmem.h"

#include "checks/report.h"
#include "exec/exec_value.h"
#include "machine/fragment.h"

static tmem_warp *mine(run *r) { return &sim_tmem(r->cta)->warps[r->warp->index]; }

/* All lanes of the warp, once: what waits for tensor memory afterwards does not gather again. */
static bool gathered(run *r, const insn *in)
{
    tmem_warp *w = mine(r);
    if (w->gathered == in) return true;
    if (!sim_gather(r, ALL_LANES)) return false;
    w->gathered = in;
    return true;
}

static step leave(run *r, step how)
{
    mine(r)->gathered = NULL;
    return how;
}

static step wait_for_it(run *r)
{
    r->fragment->state = WAITING;
    r->fragment->reason = W_TMEM;
    return STEP_WAIT;
}

static bool bad_columns(run *r, const insn *in, uint32_t *columns)
{
    uint32_t first = (uint32_t)__builtin_ctz(r->mask);
    *columns = (uint32_t)sim_lane(r, in->o[2], 4, first);
    ACTIVE(r)
    {
        uint32_t other = (uint32_t)sim_lane(r, in->o[2], 4, i);
        if (other == *columns) continue;
        sim_report(r, in, 'E', "tmem-alloc", (int)i, "%u columns, where lane %u has %u", other, first, *columns);
        return true;
    }
    if (*columns >= TMEM_UNIT && *columns <= TMEM_COLUMNS && (*columns & (*columns - 1)) == 0) return false;
    sim_report(r, in, 'E', "tmem-alloc", -1, "%u columns, not a power of two from 32 to 512", *columns);
    return true;
}

static uint32_t units_of(uint32_t column, uint32_t columns)
{
    uint32_t units = columns / TMEM_UNIT;
    return ((1u << units) - 1) << column / TMEM_UNIT;
}

/* A free place at a multiple of the size, so that nothing is lost between allocations that do not grow; any of them, as
 * the seed says. NONE: there is none. */
static uint32_t find_place(run *r, uint32_t taken, uint32_t columns)
{
    uint32_t places[TMEM_COLUMNS / TMEM_UNIT], n = 0;
    for (uint32_t column = 0; column + columns <= TMEM_COLUMNS; column += columns)
        if (!(taken & units_of(column, columns))) places[n++] = column;
    if (!n) return NONE;
    return places[sim_config.tmem_anywhere ? sim_random(&r->random) % n : 0];
}

static void take(cta *c, uint32_t column, uint32_t columns)
{
    tmem *t = sim_tmem(c);
    t->units |= units_of(column, columns);
    t->allocations[t->n_allocations++] = (tmem_span){.groups = TMEM_ALL_GROUPS, .column = column, .columns = columns};
    t->least = columns;
    for (uint32_t lane = 0; lane < TMEM_LANES; lane++)
        memset(&t->cells[lane][column], POISON_BYTE, columns * sizeof t->cells[0][0]);
    for (uint32_t use = 0; use < TMEM_USES; use++)
        for (uint32_t g = 0; g < TMEM_GROUPS; g++)
            memset(&t->last[use][g][column], 0, columns * sizeof t->last[0][0][0]);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Pairs                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef enum meeting { MET, WAITS, CLASH } meeting;

/* A peer that did not wait at its dealloc, and may have exited since. */
static cta *left_behind(run *r)
{
    cluster *c = r->cta->cluster;
    cta *peer = (r->cta->rank ^ 1) < c->n ? c->ctas[r->cta->rank ^ 1] : NULL;
    return peer && peer->tmem && peer->tmem->request.op == TMEM_DEALLOC ? peer : NULL;
}

/* Puts this CTA's request, and says whether the peer's is there too. */
static meeting meet(run *r, const insn *in, const tmem_request *wanted)
{
    cta *peer = wanted->op == TMEM_DEALLOC ? left_behind(r) : NULL;
    if (!peer) peer = sim_tmem_peer(r, in);
    if (!peer) return CLASH;
    tmem_request *own = &sim_tmem(r->cta)->request, *other = &sim_tmem(peer)->request;
    if (own->op && (own->warp != wanted->warp || own->op != wanted->op)) return WAITS; /* another is on its way */
    if (!own->op) *own = *wanted;
    if (own->op == TMEM_DEALLOC && other->op == TMEM_ALLOC && other->warp == NONE) {
        sim_report(r, in, 'E', "cta-pair", -1, "frees %u columns before the peer has come to allocate them",
                   own->columns);
        return CLASH;
    }
    if (!other->op || other->granted) return WAITS;
    if (other->op == own->op && other->columns == own->columns &&
        (own->op == TMEM_ALLOC || other->column == own->column))
        return MET;
    sim_report(r, in, 'E', "cta-pair", -1, "%s of %u columns, while the peer wants to %s %u",
               own->op == TMEM_ALLOC ? "alloc" : "dealloc", own->columns, other->op == TMEM_ALLOC ? "alloc" : "dealloc",
               other->columns);
    return CLASH;
}

/* What the peer has granted meanwhile. */
static bool granted(run *r, tmem_request_op op, uint32_t *column)
{
    tmem_request *own = &sim_tmem(r->cta)->request;
    if (own->op != op || !own->granted || (own->warp != r->warp->index && own->warp != NONE)) return false;
    *column = own->column;
    *own = (tmem_request){0};
    sim_wake(r->cta, W_TMEM, UINT64_MAX, false);
    sim_wake(r->cta->cluster->ctas[r->cta->rank ^ 1], W_TMEM, UINT64_MAX, false);
    return true;
}

/* Both have come: this CTA goes on, the other when it is its turn. */
static void grant(run *r, uint32_t column)
{
    cta *peer = r->cta->cluster->ctas[r->cta->rank ^ 1];
    tmem_request *own = &sim_tmem(r->cta)->request, *other = &sim_tmem(peer)->request;
    *own = (tmem_request){0};
    other->column = column;
    other->granted = true;
    if (!other->waits) *other = (tmem_request){0};
    sim_wake(peer, W_TMEM, UINT64_MAX, false);
}

/* Whether the first of a pair to allocate goes on without the second, which finds its columns there. */
static bool goes_ahead(run *r, uint32_t columns, uint32_t *column)
{
    cta *peer = r->cta->cluster->ctas[r->cta->rank ^ 1];
    tmem *own = sim_tmem(r->cta), *other = sim_tmem(peer);
    if (own->request.warp != r->warp->index || other->request.op || sim_random(&r->random) & 1) return false;
    *column = find_place(r, own->units | other->units, columns);
    if (*column == NONE) return false;
    own->request = (tmem_request){0};
    other->request = (tmem_request){TMEM_ALLOC, *column, columns, NONE, true, true};
    return true;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Instructions                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

static step tell_address(run *r, const insn *in, uint32_t column)
{
    uint32_t lane = (uint32_t)__builtin_ctz(r->mask);
    uint8_t *to = sim_locate(r, in, lane, in->space, sim_address_at(r, in, 1, lane), 4, WRITE);
    if (!to) return leave(r, STEP_FAIL);
    memcpy(to, &column, 4);           /* lane 0 */
    sim_order_warp(r, r->warp->live); /* they all may read it */
    return leave(r, STEP_NEXT);
}

/* Of a pair, both CTAs must have been launched, which a cluster barrier tells. */
static void check_met(run *r, const insn *in)
{
    if (!(in->flags & TENSOR_PAIR) || r->cta->cluster->met) return;
    sim_report(r, in, 'W', "cta-pair", -1, "allocates before a cluster barrier has told that the peer was launched");
}

/* What the peer has taken for this CTA, too. */
static bool wants_the_same(run *r, const insn *in, uint32_t columns)
{
    const tmem_request *own = &sim_tmem(r->cta)->request;
    if (own->op != TMEM_ALLOC || own->warp != NONE || own->columns == columns) return true;
    sim_report(r, in, 'E', "cta-pair", -1, "alloc of %u columns, while the peer wants to alloc %u", columns,
               own->columns);
    return false;
}

static bool may_allocate(run *r, const insn *in, uint32_t columns)
{
    const tmem *t = sim_tmem(r->cta);
    if (t->relinquished) {
        sim_report(r, in, 'E', "tmem-alloc", -1, "allocates after tcgen05.relinquish_alloc_permit");
        return false;
    }
    if (columns > t->least)
        sim_report(r, in, 'W', "tmem-alloc", -1, "%u columns after an allocation of %u: they should not grow", columns,
                   t->least);
    return true;
}

step sim_exec_tmem_alloc(run *r, const insn *in)
{
    uint32_t columns = 0, column = 0;
    if (!gathered(r, in)) return STEP_WAIT;
    const bool again = sim_tmem(r->cta)->request.op == TMEM_ALLOC && sim_tmem(r->cta)->request.warp == r->warp->index;
    if (!again) check_met(r, in);
    if (bad_columns(r, in, &columns) || !wants_the_same(r, in, columns)) return leave(r, STEP_FAIL);
    if (!again && !may_allocate(r, in, columns)) return leave(r, STEP_FAIL);
    if (granted(r, TMEM_ALLOC, &column)) return tell_address(r, in, column);
    uint32_t taken = sim_tmem(r->cta)->units;
    cta *peer = NULL;
    if (in->flags & TENSOR_PAIR) {
        tmem_request wanted = {.op = TMEM_ALLOC, .columns = columns, .warp = r->warp->index, .waits = true};
        meeting how = meet(r, in, &wanted);
        if (how == CLASH) return leave(r, STEP_FAIL);
        peer = r->cta->cluster->ctas[r->cta->rank ^ 1];
        if (how == WAITS && !again && goes_ahead(r, columns, &column)) {
            take(r->cta, column, columns);
            take(peer, column, columns);
            return tell_address(r, in, column);
        }
        if (how == WAITS) return wait_for_it(r);
        taken |= sim_tmem(peer)->units;
    }
    column = find_place(r, taken, columns);
    if (column == NONE) return wait_for_it(r);
    take(r->cta, column, columns);
    if (peer) {
        take(peer, column, columns);
        grant(r, column);
    }
    r->idle_steps = 0;
    return tell_address(r, in, column);
}

static void give_back(cta *c, uint32_t column, uint32_t columns)
{
    tmem *t = sim_tmem(c);
    for (uint32_t i = 0; i < t->n_allocations; i++)
        if (t->allocations[i].column == column) t->allocations[i] = t->allocations[--t->n_allocations];
    t->units &= ~units_of(column, columns);
    sim_wake(c, W_TMEM, UINT64_MAX, false);
}

static bool is_allocation(run *r, const insn *in, uint32_t address, uint32_t columns)
{
    tmem *t = sim_tmem(r->cta);
    for (uint32_t i = 0; i < t->n_allocations; i++)
        if (t->allocations[i].column == address && t->allocations[i].columns == columns) return true;
    sim_report(r, in, 'E', "tmem-dealloc", -1, "%u columns at 0x%08x were not allocated together", columns, address);
    return false;
}

/* Of a pair, the first may or may not wait for the second. */
step sim_exec_tmem_dealloc(run *r, const insn *in)
{
    uint32_t columns = 0, column = 0;
    if (!gathered(r, in)) return STEP_WAIT;
    if (granted(r, TMEM_DEALLOC, &column)) return leave(r, STEP_NEXT);
    uint32_t address = (uint32_t)sim_lane(r, in->o[0], 4, (uint32_t)__builtin_ctz(r->mask));
    const tmem_request *own = &sim_tmem(r->cta)->request;
    bool again = own->op == TMEM_DEALLOC && own->warp == r->warp->index;
    if (bad_columns(r, in, &columns) || !is_allocation(r, in, address, columns)) return leave(r, STEP_FAIL);
    if (!again) {
        tmem_span span = {.groups = TMEM_ALL_GROUPS, .column = address, .columns = columns};
        sim_tmem_ordered(r, in, r->mask & (~r->mask + 1), r->cta, span, TMEM_FREE);
    }
    if (in->flags & TENSOR_PAIR) {
        bool waits = sim_random(&r->random) & 1;
        tmem_request wanted = {TMEM_DEALLOC, address, columns, r->warp->index, false, waits};
        meeting how = meet(r, in, &wanted);
        if (how == CLASH) return leave(r, STEP_FAIL);
        bool placed = own->op == TMEM_DEALLOC && own->warp == r->warp->index;
        if (how == WAITS && placed && !own->waits) return leave(r, STEP_NEXT);
        if (how == WAITS) return wait_for_it(r);
        give_back(r->cta->cluster->ctas[r->cta->rank ^ 1], address, columns);
        grant(r, address);
    }
    give_back(r->cta, address, columns);
    r->idle_steps = 0;
    return leave(r, STEP_NEXT);
}

step sim_exec_tmem_relinquish(run *r, const insn *in)
{
    (void)in;
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    sim_tmem(r->cta)->relinquished = true;
    return STEP_NEXT;
}
