/* Shadow of shared memory: which bytes were ever written, and which accesses are ordered by synchronisation.
 *
 * Order is kept as vector clocks over the threads of a cluster. A thread knows of each other thread the clock up to
 * which it has seen its effects (`seen`, shared by all threads that left the same barrier) and counts its own releases.
 * Other parts of a set are what proxy fences have covered, by kind (clocks.h): asynchronous operations may read only
 * that.
 *
 * With scopes (PTXSIM_SCOPES) a release or an acquire of a CTA tells and learns nothing of other CTAs, but for what
 * needs no such order. That is a part of its own, the weakly known: which asynchronous writes have landed, which any
 * arrival passes on, for asynchronous operations; and which reads are over, which any release passes on.
 * A byte remembers its last write and its last read; an access that its thread does not know to be after those is a
 * race. Bytes whose copy is under way may not be looked at. Only the last reader is remembered: which of several is
 * last depends on the seed. */
#ifndef PTXSIM_SHADOW_H
#define PTXSIM_SHADOW_H

#include "machine/memory.h"

typedef struct clock_set {
    uint32_t references, n, at[];
} clock_set;

void sim_shadow_open(cta *c);
void sim_shadow_close(cta *c);
void sim_shadow(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes, access how);
void sim_shadow_mbarrier(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset); /* of an instruction */

/* An asynchronous operation that `lane` issues now: its epoch, for what it writes and for whom it signals. */
uint32_t sim_order_issue(run *r, uint32_t lane);
void sim_order_signal(cta *signalled, clock_set **order, uint32_t epoch);
void sim_order_landed(cta *signalled, clock_set **order, uint32_t epoch); /* what it writes is there */

/* Without an instruction of its own: what such an operation reads or writes when it happens. */
void sim_shadow_landed(cta *owner, uint32_t offset, uint32_t bytes, uint32_t epoch);
void sim_shadow_sending(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes);
void sim_shadow_signalling(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset); /* an mbarrier */
void sim_shadow_sent(cta *owner, uint32_t offset, uint32_t bytes);
/* The same of an operation that `lane` has waited for: until now it may have read. */
void sim_shadow_waited(run *r, const insn *in, uint32_t lane, cta *owner, uint32_t offset, uint32_t bytes);
/* The active lanes know what asynchronous operations of the first of them read so far. */
void sim_order_tell(run *r);

/* A fence of FENCE_* spaces: what the active lanes know of that memory may now be read by asynchronous operations. With
 * FENCE_INITS alone: of whose mbarriers relaxed arrivals tell, too; each lane's own. */
void sim_order_fence(run *r, uint32_t spaces);

/* The active lanes release what they did into *order; what was released there is acquired by the lanes of a mask. Of
 * releases to other CTAs `place` is the instruction's, 0: of none. */
void sim_order_arrive(run *r, clock_set **order, uint32_t place);
void sim_order_acquire(run *r, uint32_t lanes, clock_set *order);
void sim_order_barrier(cta *c, named_barrier *b, uint32_t number); /* by all that wait there; empties b->order */
void sim_order_warp(run *r, uint32_t lanes);                       /* among lanes of one warp */
void sim_order_drop(clock_set **order);

/* Tensor memory's order (tmem.h) is kept in clocks of warps, in the same sets. What a warp's operations were when it
 * last synchronised; when it last told of them by tcgen05.fence::before_thread_sync; when it last had them committed.
 */
typedef enum tensor_clock { TENSOR_SYNCED, TENSOR_TOLD, TENSOR_DONE, TENSOR_CLOCKS } tensor_clock;

uint32_t sim_order_tensor(const cta *c, tensor_clock which, uint32_t warp); /* an index; warp of the cluster */
/* Arrivals that release nothing, or (`narrow`) not to those who wait. Acquires of nothing, or of a CTA alone. */
void sim_order_arrive_weakly(run *r, clock_set **order, bool narrow);
void sim_order_acquire_relaxed(run *r, uint32_t lanes, const clock_set *order);
void sim_order_acquire_narrow(run *r, uint32_t lanes, const clock_set *order);
void sim_order_raise(run *r, uint32_t lanes, uint32_t index, uint32_t clock);
clock_set *sim_order_seen(const cta *c, uint32_t thread);

#endif
