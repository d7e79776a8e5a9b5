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

/* Counters of a group: CTAs that arrived, and above those the ones that gave up waiting; CTAs that waited to the end.
 */
enum { ARRIVED, SEEN };
#define ARRIVALS(counted) ((int)((counted) & (SM80_ROUTE_GAVE_UP - 1)))

/* A CTA's tokens of its group, counted in turns. Stride 0: none, and it did not wait for any. */
typedef struct share {
    int first, stride;
    bool last_to_see; /* nobody needs the counters any more */
} share;

/* The last `waiters` CTAs to arrive share the turns. Those before the very last wait for it, but only for a while: it
 * may be that it cannot start while they are there. Where one gave up, the very last takes all turns; then a turn may
 * be taken twice, with the same result. One thread, after a barrier. */
__device__ inline share meet(const sm80_route_params &q, uint64_t *counters, int turns)
{
    const int waiters = min(turns, q.waiters);
    if (q.ctas == 1) return {0, 1, false};
    const uint64_t before = add_and_publish(&counters[ARRIVED], q.base, 1);
    const int slot = ARRIVALS(before) - (q.ctas - waiters);
    if (slot < 0) return {0, 0, false};
    const bool very_last = slot == waiters - 1;
    bool complete = very_last;
    const int64_t start = clock64();
    while (!complete && clock64() - start < SM80_ROUTE_PATIENCE)
        complete = ARRIVALS(counted(&counters[ARRIVED], q.base)) == q.ctas;
    if (!complete) complete = ARRIVALS(add_and_publish(&counters[ARRIVED], q.base, SM80_ROUTE_GAVE_UP)) == q.ctas;
    __threadfence();
    const bool last_to_see =
        waiters == 1 || atomicAdd((counter_word *)&counters[SEEN], (counter_word)1) - q.base == waiters - 1;
    if (!complete) return {turns, 1, last_to_see};
    if (very_last && before >= SM80_ROUTE_GAVE_UP) return {0, 1, last_to_see};
    return {slot, waiters, last_to_see};
}

#endif
