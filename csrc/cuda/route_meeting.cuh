/* How the CTAs of one launch find out which is last, and which of them divide what follows. */
#ifndef NK_ROUTE_MEETING_CUH
#define NK_ROUTE_MEETING_CUH

#include "counters.cuh"
#include "cuda_route.h"

/* A meeting's two counters: CTAs that arrived and, in the bits above, CTAs that gave up waiting; CTAs that waited. */
enum { ARRIVED, SEEN, MEETING_COUNTERS };
static_assert(MEETING_COUNTERS == ROUTE_MEETING_COUNTERS, "the host makes room for them");

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
} duty;

/* Waiters wait for the very last CTA to arrive, but only for a while, because it may not be able to start while they
 * are resident. Where one gave up, the very last does all the work; a range may then be done twice, with the same
 * result. For one thread, behind a barrier of its CTA. */
__device__ inline duty meet(const meeting &m)
{
    if (m.ctas == 1) return {0, 1};
    const uint64_t before = add_and_publish(&m.counters[ARRIVED], m.base, 1), arrivals = m.gave_up - 1;
    const int waiter = (int)(before & arrivals) - (m.ctas - m.waiters);
    if (waiter < 0) return {0, 0};
    const bool very_last = waiter == m.waiters - 1;
    bool complete = very_last;
    const int64_t start = clock64();
    while (!complete && clock64() - start < m.patience)
        complete = (counted(&m.counters[ARRIVED], m.base) & arrivals) == m.ctas;
    if (!complete) complete = (add_and_publish(&m.counters[ARRIVED], m.base, m.gave_up) & arrivals) == m.ctas;
    if (!very_last) fence_acq_rel_gpu();
    if (!complete) return {1, 1};
    if (very_last && before >= m.gave_up) return {0, 1};
    return {waiter, m.waiters};
}

/* Of those that have a duty, once it is done, since it takes as long as a meeting: the last one spoils the counters,
 * which nobody needs any more. For one thread. */
__device__ inline void leave_meeting(const meeting &m)
{
    if (m.ctas == 1) return;
    const bool last =
        m.waiters == 1 || atomicAdd((counter_word *)&m.counters[SEEN], (counter_word)1) - m.base == m.waiters - 1;
    for (int i = 0; last && i < MEETING_COUNTERS; i++)
        spoil_counter(&m.counters[i], m.base);
}

#endif
