/* A barrier of the CTAs of one launch that only the last to arrive wait at, and that divides what follows among them.
 */
#ifndef NK_GRID_BARRIER_CUH
#define NK_GRID_BARRIER_CUH

#include "counters.cuh"
#include "cuda_route.h"

/* Its two counters: CTAs that arrived and, in the bits above, CTAs that timed out; CTAs that waited. */
enum { ARRIVED, SEEN, GRID_BARRIER_COUNTERS };
static_assert(GRID_BARRIER_COUNTERS == ROUTE_BARRIER_COUNTERS, "the host makes room for them");

/* `ctas` arrive; the last `waiters` of them divide the work that follows among them. */
typedef struct grid_barrier {
    uint64_t *counters;
    uint64_t base;
    int ctas, waiters;
    int timeout;        /* clocks */
    uint64_t timed_out; /* what a CTA that times out adds; a power of two above `ctas` */
} grid_barrier;

/* One thread for each counter calls it, long before its CTA arrives. */
__device__ inline void init_grid_barrier(const grid_barrier &m, int counter)
{
    const uint64_t most = counter == SEEN ? m.waiters : m.ctas + m.timed_out * (m.waiters - 1);
    prepare_counter(&m.counters[counter], m.base, most);
}

/* What a CTA has to do of the work that follows: range `range` of `ranges`. It is nothing if ranges is 0, since the CTA
 * was not among the last; nor if range = ranges, since it timed out and the very last CTA does all. */
typedef struct work_range {
    int range, ranges;
} work_range;

/* Waiters wait for the very last CTA to arrive, but only for a while, because it may not be able to start while they
 * are resident. If one timed out, the very last does all the work; a range may then be done twice, with the same
 * result. For one thread, behind a barrier of its CTA. */
__device__ inline work_range arrive_and_wait(const grid_barrier &m)
{
    if (m.ctas == 1) return {0, 1};
    const uint64_t before = add_and_publish(&m.counters[ARRIVED], m.base, 1), arrivals = m.timed_out - 1;
    const int waiter = (int)(before & arrivals) - (m.ctas - m.waiters);
    if (waiter < 0) return {0, 0};
    const bool very_last = waiter == m.waiters - 1;
    bool complete = very_last;
    const int64_t start = clock64();
    while (!complete && clock64() - start < m.timeout)
        complete = (counted(&m.counters[ARRIVED], m.base) & arrivals) == m.ctas;
    if (!complete) complete = (add_and_publish(&m.counters[ARRIVED], m.base, m.timed_out) & arrivals) == m.ctas;
    if (!complete) return {1, 1};
    if (very_last && before >= m.timed_out) return {0, 1};
    return {waiter, m.waiters};
}

/* For one thread of a CTA that has a range, once that is done, since it takes as long as the barrier: the last CTA
 * makes the counters garbage again. */
__device__ inline void leave_grid_barrier(const grid_barrier &m)
{
    if (m.ctas == 1) return;
    const bool last =
        m.waiters == 1 || atomicAdd((counter_word *)&m.counters[SEEN], (counter_word)1) - m.base == m.waiters - 1;
    for (int i = 0; last && i < GRID_BARRIER_COUNTERS; i++)
        spoil_counter(&m.counters[i], m.base);
}

#endif
