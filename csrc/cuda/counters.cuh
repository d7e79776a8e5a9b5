/* Counters of the CTAs of one launch, in memory that holds anything at the start.
 *
 * A counter is a 64-bit word of the workspace. A launch has a random base. A word in base .. base + most counts from
 * the base; any other is garbage. Each CTA first prepares the words that it will use: one compare-and-swap replaces
 * garbage by the base, and fails only if another CTA of the launch was faster. The last CTA that needs a word makes
 * it garbage again: a replayed graph has the same base, and must start as the first launch did. */
#ifndef NK_COUNTERS_CUH
#define NK_COUNTERS_CUH

#include "cuda/ptx/global.cuh"

#include <stdint.h>

typedef unsigned long long counter_word;

/* This thread sees what the counted threads wrote before they added. */
__device__ inline uint64_t counted(const uint64_t *counter, uint64_t base) { return ld_acquire_gpu(counter) - base; }

/* For one thread. */
__device__ inline void prepare_counter(uint64_t *counter, uint64_t base, uint64_t most)
{
    const uint64_t found = *(const volatile uint64_t *)counter;
    if (found - base > most) atomicCAS((counter_word *)counter, (counter_word)found, (counter_word)base);
}

/* Adds to a counter, by one thread, behind a barrier of its CTA: a thread that adds later sees what the CTA's threads
 * wrote before the barrier. Returns what was counted before. */
__device__ inline uint64_t add_and_publish(uint64_t *counter, uint64_t base, uint64_t more)
{
    return atom_add_acq_rel_gpu(counter, more) - base; /* one fence in machine code, where two around it are two */
}

__device__ inline void spoil_counter(uint64_t *counter, uint64_t base) { *(volatile uint64_t *)counter = base - 1; }

#endif
