/* Decides which uses of tensor memory a thread may count on; tmem.h has the rules. */
#include "tmem.h"

#include "checks/report.h"
#include "exec/exec.h"

static uint32_t warp_of(uint32_t record) { return record >> 22; }
static uint32_t count_of(uint32_t record) { return record & 0x3fffff; }
static uint32_t number_of(const cta *c, uint32_t warp) { return c->rank * c->n_warps + warp; }

uint32_t sim_tmem_published(const cta *c, uint32_t warp)
{
    const tmem_warp *w = &c->tmem->warps[warp];
    return w->n_pending ? w->pending[0].count - 1 : w->count;
}

void sim_tmem_release(const cta *c, uint32_t warp, clock_set *into)
{
    uint32_t *at = &into->at[sim_order_tensor(c, TENSOR_SYNCED, number_of(c, warp))];
    uint32_t count = c->tmem->warps[warp].count;
    if (*at < count) *at = count;
}

void sim_tmem_done(const cta *c, uint32_t warp, uint32_t count, clock_set *into)
{
    uint32_t *at = &into->at[sim_order_tensor(c, TENSOR_DONE, number_of(c, warp))];
    if (*at < count) *at = count;
}

/* tcgen05.fence::before_thread_sync (op 'b') and ::after_thread_sync ('a') */
step sim_exec_tmem_fence(run *r, const insn *in)
{
    cta *c = r->cta;
    tmem *t = sim_tmem(c);
    uint32_t warp = r->warp->index;
    if (!c->shadow) return STEP_NEXT;
    if (in->op == 'b') {
        uint32_t place = sim_order_tensor(c, TENSOR_TOLD, number_of(c, warp));
        sim_order_raise(r, r->mask, place, sim_tmem_published(c, warp));
        return STEP_SLEEP;
    }
    ACTIVE(r)
    {
        clock_set **heeded = &t->heeded[warp * LANES + i];
        sim_order_drop(heeded);
        *heeded = sim_order_seen(c, warp * LANES + i);
        if (*heeded) (*heeded)->references++;
    }
    return STEP_SLEEP;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The check                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef enum verdict { FINE, NO_SYNC, NO_COMPLETION, NO_FENCE_BEFORE, NO_FENCE_AFTER, NO_ORDER, VERDICTS } verdict;

typedef struct who {
    run *r;
    const clock_set *seen, *heeded;
    cta *owner;
} who;

static bool knows(const who *w, const clock_set *set, tensor_clock which, uint32_t record)
{
    return set && set->at[sim_order_tensor(w->r->cta, which, warp_of(record))] >= count_of(record);
}

static bool is_async(tmem_use use) { return use >= TMEM_OPERAND && use <= TMEM_COPY; }

/* Whether the warp of a record has issued an mma since, behind which a copy may count on coming. */
static bool multiplied_since(const who *w, uint32_t record)
{
    const cta *c = w->r->cta, *its = c->cluster->ctas[warp_of(record) / c->n_warps];
    return its->tmem && its->tmem->warps[warp_of(record) % c->n_warps].last_product > count_of(record);
}

/* Whether an asynchronous use runs behind another that was issued before it. */
static bool in_order(const who *w, tmem_use use, tmem_use before, uint32_t record, bool same_tile)
{
    if (use == TMEM_COPY && !sim_config.cp_behind_mma) return false;
    if (use == TMEM_COPY) return before == TMEM_SCALE || (before == TMEM_COPY && multiplied_since(w, record));
    return before == TMEM_COPY || (use == TMEM_SUM && before == TMEM_SUM && same_tile);
}

/* What was asynchronous must have been committed, unless it and what follows run in the order of issue. */
static verdict after_async(const who *w, tmem_use use, tmem_use before, uint32_t record, bool same_tile)
{
    bool queued = is_async(use) && in_order(w, use, before, record, same_tile);
    bool own = warp_of(record) == number_of(w->r->cta, w->r->warp->index);
    if ((queued && own) || knows(w, w->heeded, TENSOR_DONE, record)) return FINE;
    if (queued && knows(w, w->heeded, TENSOR_TOLD, record)) return FINE;
    if (use == TMEM_FREE && knows(w, w->seen, TENSOR_DONE, record)) return FINE;
    if (knows(w, w->seen, TENSOR_DONE, record)) return NO_FENCE_AFTER;
    if (queued && knows(w, w->seen, TENSOR_TOLD, record)) return NO_FENCE_AFTER;
    if (!own && !knows(w, w->seen, TENSOR_SYNCED, record)) return NO_SYNC;
    return queued ? NO_FENCE_BEFORE : is_async(use) ? NO_ORDER : NO_COMPLETION;
}

static verdict after_access(const who *w, tmem_use use, uint32_t record)
{
    const cta *c = w->r->cta;
    uint32_t by = warp_of(record);
    const cta *its = c->cluster->ctas[by / c->n_warps];
    if (by == number_of(c, w->r->warp->index))
        return count_of(record) <= sim_tmem_published(c, w->r->warp->index) ? FINE : NO_COMPLETION;
    if (knows(w, w->heeded, TENSOR_TOLD, record)) return FINE;
    if (!knows(w, w->seen, TENSOR_SYNCED, record)) return NO_SYNC;
    if (its->tmem && sim_tmem_published(its, by % c->n_warps) < count_of(record)) return NO_COMPLETION;
    if (use == TMEM_FREE) return FINE;
    return knows(w, w->seen, TENSOR_TOLD, record) ? NO_FENCE_AFTER : NO_FENCE_BEFORE;
}

static void report(const who *w, const insn *in, tmem_use use, tmem_use before, uint32_t record, uint32_t column,
                   verdict what)
{
    static const char *const verbs[] = {"tcgen05.ld reads", "tcgen05.st writes", "tcgen05.mma reads (A)",
                                        "tcgen05.mma reads (scales)", "tcgen05.mma writes", "tcgen05.cp writes",
                                        "frees"};
    static const char *const was[] = {"read (tcgen05.ld)", "wrote (tcgen05.st)", "had read as A (tcgen05.mma)",
                                      "had read as scales (tcgen05.mma)", "had written by tcgen05.mma",
                                      "had written by tcgen05.cp"};
    static const char *const codes[VERDICTS] = {"", "race", "in-flight", "tcgen05-fence", "tcgen05-fence",
                                                "tcgen05-order"};
    static const char *const why[VERDICTS] = {
        "", "without synchronisation in between",
        "without waiting for it (tcgen05.commit and its mbarrier, or tcgen05.wait)",
        "without tcgen05.fence::before_thread_sync before the synchronisation",
        "without tcgen05.fence::after_thread_sync behind the synchronisation",
        "without waiting for its tcgen05.commit: these two may overtake one another"};
    const cta *c = w->r->cta;
    sim_report(w->r, in, 'W', codes[what], -1, "%s column %u of tensor memory, which warp %u of CTA rank %u %s, %s",
               verbs[use], column, warp_of(record) % c->n_warps, warp_of(record) / c->n_warps, was[before], why[what]);
}

static bool excludes(tmem_use use, tmem_use before)
{
    bool reads = use == TMEM_LOAD || use == TMEM_OPERAND || use == TMEM_SCALE;
    return !(reads && (before == TMEM_LOAD || before == TMEM_OPERAND || before == TMEM_SCALE));
}

/* One thread's view of a span; false after a warning. */
static bool check(const who *w, const insn *in, tmem_span span, tmem_use use)
{
    const tmem *t = w->owner->tmem;
    for (tmem_use before = 0; before < TMEM_USES; before++) {
        uint32_t judged = 0;
        for (uint32_t g = 0; excludes(use, before) && g < TMEM_GROUPS; g++) {
            for (uint32_t i = span.column; span.groups >> g & 1 && i < span.column + span.columns; i++) {
                uint32_t record = t->last[before][g][i];
                if (record == judged || record == 0) continue; /* neighbours often have the same history */
                judged = record;
                verdict what = is_async(before) ? after_async(w, use, before, record, t->tiles[g][i] == span.tile)
                                                : after_access(w, use, record);
                if (what == FINE) continue;
                report(w, in, use, before, record, i, what);
                return false;
            }
        }
    }
    return true;
}

bool sim_tmem_ordered(run *r, const insn *in, uint32_t lanes, cta *owner, tmem_span span, tmem_use use)
{
    cta *c = r->cta;
    if (!c->shadow || !sim_config.check_races) return true;
    who w = {.r = r, .owner = owner};
    for (bool first = true; lanes; lanes &= lanes - 1, first = false) {
        uint32_t thread = r->warp->index * LANES + (uint32_t)__builtin_ctz(lanes);
        const clock_set *seen = sim_order_seen(c, thread), *heeded = sim_tmem(c)->heeded[thread];
        if (!first && seen == w.seen && heeded == w.heeded) continue;
        w.seen = seen;
        w.heeded = heeded;
        if (!check(&w, in, span, use)) return false;
    }
    return true;
}
