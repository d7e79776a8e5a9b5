/* How the CTAs of one launch find out who is last, in memory that holds anything at the start.
 *
 * A counter is a 64-bit word of the workspace. A launch has a random base; a word in base .. base + most counts from
 * there, any other is garbage. Every CTA first makes sure of the words that it will use: it replaces garbage by the
 * base with one compare-and-swap, which fails only where another CTA of the launch was faster. The last one to need a
 * word makes it garbage again, so that a replayed graph, whose base is the same, starts as the first launch did. */
#ifndef NK_SM80_ROUTE_JOIN_CUH
#define NK_SM80_ROUTE_JOIN_CUH

#include <stdint.h>

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

/* How many counted before. One thread. */
__device__ inline uint64_t count(uint64_t *counter, uint64_t base)
{
    return atomicAdd((counter_word *)counter, (counter_word)1) - base;
}

/* The same for a CTA that met at a barrier: what its threads wrote before is seen by whoever counts later. */
__device__ inline uint64_t count_and_publish(uint64_t *counter, uint64_t base)
{
    __threadfence();
    const uint64_t before = count(counter, base);
    __threadfence();
    return before;
}

__device__ inline void spoil_counter(uint64_t *counter, uint64_t base) { *(volatile uint64_t *)counter = base - 1; }

/* Whether `all` have counted, waiting for them for `patience` clocks only: CTAs that cannot start while this one is
 * there would be waited for in vain. One thread. */
__device__ inline bool wait_for(const uint64_t *counter, uint64_t base, uint64_t all, int64_t patience)
{
    const int64_t start = clock64();
    bool complete = counted(counter, base) == all;
    while (!complete && clock64() - start < patience)
        complete = counted(counter, base) == all;
    __threadfence();
    return complete;
}

#endif
