/* Declares what executes branches, exits, traps, clocks, packing of registers, and cvta. */
#ifndef PTXSIM_EXEC_FLOW_H
#define PTXSIM_EXEC_FLOW_H

#include "sim.h"

op_fn sim_exec_bra, sim_exec_exit, sim_exec_trap, sim_exec_clock, sim_exec_pack, sim_exec_unpack, sim_exec_cvta;

#endif
