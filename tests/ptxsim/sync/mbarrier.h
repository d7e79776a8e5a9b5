/* mbarrier objects. Their state lies beside shared memory; the eight bytes there hold a mark that ordinary stores
 * destroy, so that misuse is seen. */
#ifndef PTXSIM_MBARRIER_H
#define PTXSIM_MBARRIER_H

#include "machine/memory.h"

typedef struct mbarrier {
    uint32_t offset, expected;
    int32_t pending, bytes; /* arrivals and bytes of the running phase that are yet to come */
    uint64_t phase;
    struct clock_set *order, *done;   /* released in the running phase; in the one before */
    struct clock_set *far, *far_done; /* with scopes: likewise by other CTAs, to the cluster */
    uint32_t commits;                 /* arrivals of tcgen05.commit under way */
    bool valid;
} mbarrier;

op_fn sim_exec_mbarrier, sim_exec_mbarrier_wait;

/* The barrier at an address; NULL after a report. */
mbarrier *sim_mbarrier_at(run *r, const insn *in, uint32_t lane, space space, uint64_t address, cta **owner);

/* The same in a CTA at an offset, for operations that land; in names who issued them. */
mbarrier *sim_mbarrier_in(run *r, const insn *in, cta *owner, uint32_t offset);

/* `bytes` have come; `epoch` is that of the operation that brought them. */
bool sim_mbarrier_complete(run *r, const insn *in, cta *owner, mbarrier *m, uint32_t bytes, uint32_t epoch);

/* One arrival, of tcgen05.commit, without what the arriving thread knows. */
bool sim_mbarrier_arrive(run *r, const insn *in, uint32_t lane, cta *owner, mbarrier *m);

void sim_mbarriers_close(cta *c);
void sim_mbarrier_describe(const cta *c, uint32_t offset, char *to, size_t size);

/* What sim_exec_mbarrier does: insn.op. */
typedef enum mbarrier_op { MB_INIT, MB_INVAL, MB_ARRIVE, MB_EXPECT, MB_COMPLETE, MB_DROP, MB_PENDING } mbarrier_op;
enum { MB_WITH_BYTES = 1, MB_RELAXED = 2, MB_CLUSTER = 4 }; /* insn.flags */
enum { WAIT_PARITY = 1 };                                   /* instead of MB_WITH_BYTES */

#endif
