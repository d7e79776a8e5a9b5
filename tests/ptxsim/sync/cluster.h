/* Clusters: their barrier, addresses in a peer's shared memory; launch control that has no effect here. */
#ifndef PTXSIM_CLUSTER_H
#define PTXSIM_CLUSTER_H

#include "sim.h"

op_fn sim_exec_cluster_arrive, sim_exec_cluster_wait, sim_exec_mapa, sim_exec_nothing, sim_exec_kernels_wait,
    sim_exec_setmaxnreg, sim_exec_proxy_fence;

/* These lanes leave: nobody waits for them at barrier.cluster any more. */
void sim_cluster_after_exit(run *r, uint32_t lanes);
void sim_cluster_close(cluster *c);

#endif
