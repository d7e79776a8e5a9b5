/* Remembers ordinary stores to global memory, and finds asynchronous loads of them without a proxy fence. */
#include "stores.h"

#include "clocks.h"
#include "flags.h"
#include "report.h"
#include "scopes.h"

#include <stdlib.h>

/* Threads of a cluster are ordered by their clocks. Between clusters nothing keeps an order, so that a fence of either
 * cluster, by whichever thread, will do if it came after the store: `when` counts fences of the launch. */
typedef struct stored {
    uint32_t cluster, epoch, when; /* cluster: its number and 1, 0: nothing was stored */
} stored;

struct stores {
    stored **pieces;  /* of each extent, NULL: nothing was stored there */
    uint32_t *fenced; /* of each cluster: `fences` after its last one */
    uint32_t fences;  /* atomic */
    uint32_t piece;   /* bytes */
};

static uint32_t cluster_of(const cta *c) { return c->number / c->cluster->n; }

void sim_stores_open(launch *l)
{
    uint64_t ctas = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
    if (!(l->program->loads_async || sim_config.check_scopes) || !sim_config.check_races) return;
    l->stores = calloc(1, sizeof *l->stores);
    l->stores->piece = sim_config.check_scopes ? 4 : 16;
    l->stores->pieces = calloc(l->n_extents + 1, sizeof *l->stores->pieces);
    l->stores->fenced = calloc(ctas, sizeof *l->stores->fenced);
}

void sim_stores_close(launch *l)
{
    struct stores *s = l->stores;
    if (!s) return;
    for (uint32_t i = 0; i < l->n_extents; i++)
        free(s->pieces[i]);
    free(s->pieces), free(s->fenced), free(s);
    l->stores = NULL;
}

/* The pieces of the extent used last; most of them are never touched, and cost no memory. */
static stored *pieces_of(run *r, bool make)
{
    stored **at = &r->launch->stores->pieces[r->extent], *was = __atomic_load_n(at, __ATOMIC_ACQUIRE);
    if (was || !make) return was;
    stored *fresh = calloc((r->hi - r->lo) / r->launch->stores->piece + 2, sizeof *fresh);
    if (__atomic_compare_exchange_n(at, &was, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return fresh;
    free(fresh);
    return was;
}

static uint64_t piece_at(const run *r, uint64_t address)
{
    return address / r->launch->stores->piece - r->lo / r->launch->stores->piece;
}

static void put(run *r, uint64_t address, uint32_t bytes, stored what)
{
    stored *pieces = pieces_of(r, what.cluster);
    for (uint64_t i = piece_at(r, address); pieces && i <= piece_at(r, address + bytes - 1); i++) {
        __atomic_store_n(&pieces[i].epoch, what.epoch, __ATOMIC_RELAXED);
        __atomic_store_n(&pieces[i].when, what.when, __ATOMIC_RELAXED);
        __atomic_store_n(&pieces[i].cluster, what.cluster, __ATOMIC_RELAXED);
    }
}

void sim_stored(run *r, uint32_t lane, uint64_t address, uint32_t bytes)
{
    const cta *c = r->cta;
    struct stores *s = r->launch->stores;
    if (!s || address < r->lo || address >= r->hi) return; /* another space's */
    uint32_t thread = r->warp->index * LANES + lane;
    stored what = {.cluster = cluster_of(c) + 1, .when = __atomic_load_n(&s->fences, __ATOMIC_RELAXED)};
    what.epoch = epoch_of(first_thread(c) + thread, c->shadow->threads[thread].clock);
    put(r, address, bytes, what);
}

void sim_stored_async(run *r, uint64_t address, uint32_t bytes)
{
    if (r->launch->stores && address >= r->lo) put(r, address, bytes, (stored){0});
}

void sim_stores_fence(run *r)
{
    struct stores *s = r->launch->stores;
    if (!s) return;
    uint32_t now = __atomic_add_fetch(&s->fences, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&s->fenced[cluster_of(r->cta)], now, __ATOMIC_RELAXED);
}

bool sim_stores_matter(run *r, uint64_t address)
{
    return r->launch->stores && sim_memory_find(r, address, 1) && pieces_of(r, false);
}

static bool covered_since(run *r, uint32_t lane, stored what)
{
    const struct stores *s = r->launch->stores;
    const cta *c = r->cta;
    uint32_t thread = r->warp->index * LANES + lane, self = first_thread(c) + thread, mine = cluster_of(c);
    const thread_order *me = &c->shadow->threads[thread];
    if (what.cluster - 1 == mine) {
        if (sim_order_covered(c, me, self, COVERED_GLOBAL, what.epoch)) return true;
        if (knows(me, self, what.epoch)) return false;
    }
    return __atomic_load_n(&s->fenced[mine], __ATOMIC_RELAXED) > what.when ||
           __atomic_load_n(&s->fenced[what.cluster - 1], __ATOMIC_RELAXED) > what.when;
}

bool sim_stores_check(run *r, const insn *in, uint32_t lane, uint64_t address, uint32_t bytes)
{
    if (!sim_stores_matter(r, address)) return true;
    const stored *pieces = pieces_of(r, false), *last = NULL;
    for (uint64_t i = piece_at(r, address); i <= piece_at(r, address + bytes - 1); i++) {
        const stored *now = &pieces[i];
        if (!now->cluster) continue;
        if (last && last->cluster == now->cluster && last->epoch == now->epoch && last->when == now->when) continue;
        last = now;
        if (covered_since(r, lane, *now)) continue;
        sim_report(r, in, 'W', "proxy-fence", (int)lane,
                   "asynchronously loads global byte 0x%llx, which cluster %u has stored without fence.proxy.async of "
                   "global memory afterwards",
                   (unsigned long long)(r->lo / r->launch->stores->piece + i) * r->launch->stores->piece,
                   now->cluster - 1);
        return false;
    }
    return true;
}

/* Whether a lane may count on a store; order within a CTA is not checked. */
static bool told(run *r, uint32_t lane, const stored *what)
{
    const cta *c = r->cta;
    const uint32_t thread = r->warp->index * LANES + lane, self = first_thread(c) + thread;
    const thread_order *me = &c->shadow->threads[thread];
    if (what->cluster - 1 == cluster_of(c)) {
        if (thread_in(what->epoch) / c->n_threads == c->rank) return true;
        if (knows(me, self, what->epoch)) {
            const uint32_t place = me->seen ? place_in(me->seen->at[thread_in(what->epoch)]) : 0;
            if (place) sim_scope_needed(r, place);
            return true;
        }
    }
    return sim_flags_tell(r, lane, what->cluster - 1, what->epoch);
}

bool sim_stores_seen(run *r, const insn *in, uint32_t lane, uint64_t address, uint32_t bytes)
{
    const stored *pieces = pieces_of(r, false), *last = NULL;
    if (!pieces) return true;
    for (uint64_t i = piece_at(r, address); i <= piece_at(r, address + bytes - 1); i++) {
        const stored *now = &pieces[i];
        if (!now->cluster || (last && last->cluster == now->cluster && last->epoch == now->epoch)) continue;
        last = now;
        if (told(r, lane, now)) continue;
        sim_report(r, in, 'W', "race", (int)lane,
                   "reads global byte 0x%llx, which a CTA of cluster %u has stored without a release and an acquire "
                   "that reach this one",
                   (unsigned long long)(r->lo / r->launch->stores->piece + i) * r->launch->stores->piece,
                   now->cluster - 1);
        return false;
    }
    return true;
}
