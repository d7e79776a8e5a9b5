/* Declares what executes collectives of a warp, and nanosleep. */
#ifndef PTXSIM_EXEC_WARP_H
#define PTXSIM_EXEC_WARP_H

#include "sim.h"

op_fn sim_exec_shfl, sim_exec_vote, sim_exec_match, sim_exec_redux, sim_exec_activemask, sim_exec_elect,
    sim_exec_nanosleep;

#endif
