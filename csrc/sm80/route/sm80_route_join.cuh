/* How the CTAs of one launch find out which is last, in memory that holds anything at the start.
 *
 * A counter is a 64-bit word of the workspace. A launch has a random base. A word in base .. base + most counts from
 * the base; any other is garbage. Each CTA first prepares the words that it will use: one compare-and-swap replaces
 * garbage by the base, and fails only where another CTA of the launch was faster. The last CTA that needs a word makes
 * it garbage again: a replayed graph has the same base, and must start as the first launch did. */
#ifndef NK_SM80_ROUTE_JOIN_CUH
#define NK_SM80_ROUTE_JOIN_CUH

#include "sm80_route_config.h"

typedef unsigned long long counter_word;

__device__ inline uint64_t counted(const uint64_t *counter, uint64_t base)
{
    return *(const volatile uint64_t *)counter - base;
}

/* For one thread. */
__device__ inline void prepare_counter(uint64_t *counter, uint64_t base, uint64_t most)
{
    const uint64_t found = counted(counter, base);
    if (found > most) atomicCAS((counter_word *)counter, (counter_word)(found + base), (counter_word)base);
}

/* Adds to a counter, by one thread, behind a barrier of its CTA: who adds later sees what the CTA's threads wrote
 * before the barrier. Returns what was counted before. */
__device__ inline uint64_t add_and_publish(uint64_t *counter, uint64_t base, uint64_t more)
{
    __threadfence();
    const uint64_t before = atomicAdd((counter_word *)counter, (counter_word)more) - base;
    __threadfence();
    return before;
}

__device__ inline void spoil_counter(uint64_t *counter, uint64_t base) { *(volatile uint64_t *)counter = base - 1; }

/* A meeting's two counters: CTAs that arrived and, in the bits above, CTAs that gave up waiting; CTAs that waited. */
enum { ARRIVED, SEEN, MEETING_COUNTERS };
static_assert(MEETING_COUNTERS == SM80_ROUTE_COUNTERS, "the host makes room for them");

/* Who meets: `ctas` come; the last `waiters` of them divide the work that follows among them. */
typedef struct meeting {
    uint64_t *counters;
    uint64_t base;
    int ctas, waiters;
    int patience;     /* clocks */
    uint64_t gave_up; /* what one that gives up adds; a power of two above `ctas` */
} meeting;

/* One thread for each counter calls it, long before its CTA meets. */
__device__ inline void prepare_meeting(const meeting &m, int counter)
{
    const uint64_t most = counter == SEEN ? m.waiters : m.ctas + m.gave_up * (m.waiters - 1);
    prepare_counter(&m.counters[counter], m.base, most);
}

/* What a CTA has to do of the work that follows: range `range` of `ranges`. Nothing where ranges is 0, since it was not
 * among the last; nor where range = ranges, since it gave up waiting and the very last CTA does all. */
typedef struct duty {
    int range, ranges;
    bool last_to_see; /* nobody needs the counters any more */
} duty;

/* Waiters wait for the very last CTA to arrive, but only for a while, because it may not be able to start while they
 * are resident. Where one gave up, the very last does all the work; a range may then be done twice, with the same
 * result. For one thread, behind a barrier of its CTA. */
__device__ inline duty meet(const meeting &m)
{
    if (m.ctas == 1) return {0, 1, false};
    const uint64_t before = add_and_publish(&m.counters[ARRIVED], m.base, 1), arrivals = m.gave_up - 1;
    const int waiter = (int)(before & arrivals) - (m.ctas - m.waiters);
    if (waiter < 0) return {0, 0, false};
    const bool very_last = waiter == m.waiters - 1;
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
    return {waiter, m.waiters, last_to_see};
}

/* For the last to see. */
__device__ inline void end_meeting(const meeting &m)
{
    for (int i = 0; i < MEETING_COUNTERS; i++)
        spoil_counter(&m.counters[i], m.base);
}

#endif
