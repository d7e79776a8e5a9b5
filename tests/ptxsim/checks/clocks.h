/* Vector clocks: what a thread knows of each of the others. */
#ifndef PTXSIM_CLOCKS_H
#define PTXSIM_CLOCKS_H

#include "shadow.h"

#include <stdlib.h>

#define CLOCK_BITS 17
#define THREAD_BITS 14
#define MOST_CLOCK ((1u << CLOCK_BITS) - 1)

/* A set has two halves: what is seen, and what a proxy fence has covered. An epoch: thread and clock; 0 is none, so
 * clocks begin at 1. */
static inline uint32_t epoch_of(uint32_t thread, uint32_t clock) { return thread << CLOCK_BITS | clock; }

static inline clock_set *new_set(uint32_t n)
{
    clock_set *s = calloc(1, sizeof *s + n * sizeof s->at[0]);
    s->references = 1;
    s->n = n;
    return s;
}

static inline void merge(clock_set *into, const clock_set *from)
{
    if (!from || into == from) return;
    for (uint32_t i = 0; i < into->n; i++)
        into->at[i] = into->at[i] > from->at[i] ? into->at[i] : from->at[i];
}

static inline bool covers(const clock_set *set, const clock_set *other)
{
    uint32_t missing = 0;
    if (!set) return false;
    for (uint32_t i = 0; i < set->n; i++)
        missing |= set->at[i] < other->at[i];
    return !missing;
}

#endif
