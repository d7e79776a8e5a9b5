/* Cluster launch control: a running cluster takes over one that has not begun. */
#ifndef PTXSIM_CANCEL_H
#define PTXSIM_CANCEL_H

#include "sim.h"

op_fn sim_exec_try_cancel, sim_exec_is_cancelled, sim_exec_first_cta;

#endif
