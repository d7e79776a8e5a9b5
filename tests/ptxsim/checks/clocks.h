/* Vector clocks: what a thread knows of each of the others. */
#ifndef PTXSIM_CLOCKS_H
#define PTXSIM_CLOCKS_H

#include "history.h"
#include "shadow.h"

#define CLOCK_BITS 17
#define THREAD_BITS 14
#define MOST_CLOCK ((1u << CLOCK_BITS) - 1)

/* An epoch: thread and clock; 0 is none, so clocks begin at 1. */
static inline uint32_t epoch_of(uint32_t thread, uint32_t clock) { return thread << CLOCK_BITS | clock; }

/* What a set has of a thread: a clock, and by which scoped instruction (insn.place) other CTAs learned of it. The
 * larger of two that tell the same is the one that needs none. */
#define PLACE_BITS (32 - CLOCK_BITS)
#define NO_PLACE ((1u << PLACE_BITS) - 1)

static inline uint32_t known_of(uint32_t clock) { return clock << PLACE_BITS | NO_PLACE; }
static inline uint32_t clock_of(uint32_t known) { return known >> PLACE_BITS; }
static inline uint32_t place_in(uint32_t known) { return ~known & NO_PLACE; }

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

/* What proxy fences have made known to the asynchronous proxy. PTX names state spaces, relative to who fences: */
typedef enum covered {
    COVERED_OWN,    /* of a thread's stores those to its own CTA's shared memory */
    COVERED_PEERS,  /* those to the shared memory of other CTAs */
    COVERED_GLOBAL, /* those to global memory */
    COVERED_INITS,  /* the mbarriers that it initialised (fence.mbarrier_init) */
    COVERED_KINDS
} covered;

typedef struct thread_order {
    clock_set *seen; /* NULL: of nobody */
    uint32_t clock;
    uint32_t covered[COVERED_KINDS]; /* of its own effects; others learn of them by its releases */
    struct flag_reader *reader;      /* flags.c */
} thread_order;

struct shadow {
    thread_order *threads;
    histories histories;            /* where races are looked for */
    uint8_t *ever, *flying, *async; /* a bit per byte: written at all; target of a copy under way; written by one */
    uint8_t *sending;               /* operations under way that have yet to read the byte */
    uint32_t n_sending;             /* of all bytes */
};

static inline uint32_t threads_of(const cta *c) { return c->cluster->n * c->n_threads; }
static inline uint32_t first_thread(const cta *c) { return c->rank * c->n_threads; }
static inline uint32_t thread_in(uint32_t epoch) { return epoch >> CLOCK_BITS & ((1u << THREAD_BITS) - 1); }
static inline uint32_t clock_in(uint32_t epoch) { return epoch & MOST_CLOCK; }

/* Whether a thread (`self`) may count on what happened at an epoch. */
static inline bool knows(const thread_order *me, uint32_t self, uint32_t epoch)
{
    uint32_t thread = thread_in(epoch), clock = clock_in(epoch);
    return epoch == 0 || thread == self || clock == MOST_CLOCK || (me->seen && clock <= clock_of(me->seen->at[thread]));
}

/* order.c: whether a thread of CTA c knows of an asynchronous write, or that a read is over, without a release that
 * reaches it (shadow.h). */
bool sim_order_weakly_known(const cta *c, const thread_order *me, uint32_t epoch);

/* order.c: whether a thread of CTA c knows that such a fence has covered it. */
bool sim_order_covered(const cta *c, const thread_order *me, uint32_t self, covered kind, uint32_t epoch);

#endif
