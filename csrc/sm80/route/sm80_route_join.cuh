/* How the CTAs of one launch find out who is last, in memory that holds anything at the start.
 *
 * A counter is a 64-bit word of the workspace. A launch has a random base; a word in base .. base + most counts from
 * there, any other is garbage. Every CTA first makes sure of the words that it will use: it replaces garbage by the
 * base with one compare-and-swap, which fails only where another CTA of the launch was faster. The last one to need a
 * word makes it garbage again, so that a replayed graph, whose base is the same, starts as the first launch did. */
#ifndef NK_SM80_ROUTE_JOIN_CUH
#define NK_SM80_ROUTE_JOIN_CUH

#include "sm80_route_config.h"

typedef unsigned long long counter_word;

__device__ inline uint64_t counted(const uint64_t *counter, uint64_t base)
{
    return *(const volatile uint64_t *)counter - base;
}

/* One thread. */
__device__ inline void prepare_counter(uint64_t *counter, uint64_t base, uint64_t most)
{
    const uint64_t found = counted(counter, base);
    if (found > most) atomicCAS((counter_word *)counter, (counter_word)(found + base), (counter_word)base);
}

/* Adds to a counter for a CTA that met at a barrier: what its threads wrote before is seen by whoever adds later. What
 * was counted before. One thread. */
__device__ inline uint64_t add_and_publish(uint64_t *counter, uint64_t base, uint64_t more)
{
    __threadfence();
    const uint64_t before = atomicAdd((counter_word *)counter, (counter_word)more) - base;
    __threadfence();
    return before;
}

__device__ inline void spoil_counter(uint64_t *counter, uint64_t base) { *(volatile uint64_t *)counter = base - 1; }

/* A meeting's two counters: CTAs that arrived, and above those the ones that gave up waiting; CTAs that waited. */
enum { ARRIVED, SEEN, MEETING_COUNTERS };
static_assert(MEETING_COUNTERS == SM80_ROUTE_COUNTERS, "the host makes room for them");

/* Who meets: `ctas` come; the last `waiters` of them share the work that comes next. */
typedef struct meeting {
    uint64_t *counters;
    uint64_t base;
    int ctas, waiters;
    int patience;     /* clocks */
    uint64_t gave_up; /* one that did; a power of two above `ctas` */
} meeting;

/* One thread for each counter, long before its CTA meets. */
__device__ inline void prepare_meeting(const meeting &m, int counter)
{
    const uint64_t most = counter == SEEN ? m.waiters : m.ctas + m.gave_up * (m.waiters - 1);
    prepare_counter(&m.counters[counter], m.base, most);
}

/* Part `part` of `parts` of the work; parts 0: no longer needed; part = parts: waited, but in vain. */
typedef struct share {
    int part, parts;
    bool last_to_see; /* nobody needs the counters any more */
} share;

/* Those before the very last wait for it, but only for a while: it may be that it cannot start while they are there.
 * Where one gave up, the very last does all; then a part may be done twice, with the same result. One thread, after a
 * barrier. */
__device__ inline share meet(const meeting &m)
{
    if (m.ctas == 1) return {0, 1, false};
    const uint64_t before = add_and_publish(&m.counters[ARRIVED], m.base, 1), arrivals = m.gave_up - 1;
    const int slot = (int)(before & arrivals) - (m.ctas - m.waiters);
    if (slot < 0) return {0, 0, false};
    const bool very_last = slot == m.waiters - 1;
    bool complete = very_last;
    const int64_t start = clock64();
    while (!complete && clock64() - start < m.patience)
        complete = (counted(&m.counters[ARRIVED], m.base) & arrivals) == m.ctas;
    if (!complete) complete = (add_and_publish(&m.counters[ARRIVED], m.base, m.gave_up) & arrivals) == m.ctas;
    __threadfence();
    const bool last_to_see =
        m.waiters == 1 || atomicAdd((counter_word *)&m.counters[SEEN], (counter_word)1) - m.base == m.waiters - 1;
    if (!complete) return {1, 1, last_to_see};
    if (very_last && before >= m.gave_up) return {0, 1, last_to_see};
    return {slot, m.waiters, last_to_see};
}

/* The last to see. */
__device__ inline void end_meeting(const meeting &m)
{
    for (int i = 0; i < MEETING_COUNTERS; i++)
        spoil_counter(&m.counters[i], m.base);
}

#endif
