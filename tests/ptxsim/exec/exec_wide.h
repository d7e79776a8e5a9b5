/* Declares what executes loads, stores and moves of 128-bit registers. */
#ifndef PTXSIM_EXEC_WIDE_H
#define PTXSIM_EXEC_WIDE_H

#include "sim.h"

op_fn sim_exec_load_wide, sim_exec_store_wide, sim_exec_mov_wide;

#endif
