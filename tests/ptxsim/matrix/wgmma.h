/* wgmma: products of a warpgroup, asynchronous. Each warp computes its own sixteen rows of D. */
#ifndef PTXSIM_WGMMA_H
#define PTXSIM_WGMMA_H

#include "sim.h"

typedef struct wgmma_pending {
    const insn *in;
    uint64_t a, b; /* descriptors */
    bool accumulates, computed;
    uint32_t group;
} wgmma_pending;

/* The accumulators of products under way: their registers hold poison until the wait. */
typedef struct wgmma_accumulators {
    const insn *in; /* the first product on them */
    uint32_t *values;
} wgmma_accumulators;

typedef struct wgmma_queue {
    wgmma_pending *pending;
    uint32_t n, most, committed;
    wgmma_accumulators *sets;
    uint32_t n_sets;
    uint8_t *fenced;    /* the warp's registers at the last wgmma.fence, NULL: there was none */
    const insn **begun; /* all of the warp's products, in order */
    uint32_t n_begun, most_begun;
} wgmma_queue;

op_fn sim_exec_wgmma, sim_exec_wgmma_fence, sim_exec_wgmma_commit, sim_exec_wgmma_wait;

void sim_wgmma_close(warp *w);

/* insn.flags */
enum { WG_A_REGISTERS = 1, WG_TRANSPOSE_A = 2, WG_TRANSPOSE_B = 4, WG_NEGATE_A = 8, WG_NEGATE_B = 16 };

#endif
