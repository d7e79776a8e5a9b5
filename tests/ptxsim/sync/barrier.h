/* Named barriers of a CTA: bar.sync, barrier.cta.arrive, bar.red. */
#ifndef PTXSIM_BARRIER_H
#define PTXSIM_BARRIER_H

#include "sim.h"

op_fn sim_exec_bar, sim_exec_warp_sync, sim_exec_fence;

/* A thread that exits is no longer waited for by barriers of all threads. */
void sim_barriers_after_exit(run *r);

#endif
