/* Launches: from a grid to finished CTAs. */
#ifndef PTXSIM_MACHINE_H
#define PTXSIM_MACHINE_H

#include "sim.h"

/* Runs to the end. False after an error; l->error says which. */
bool sim_launch_run(launch *l);

/* cta.c */
void sim_cta_open(run *r, cta *c, uint32_t number);
void sim_cta_close(cta *c);

/* deadlock.c: who waits for what, as an error */
void sim_report_deadlock(run *r, cta *const *ctas, uint32_t n, const char *code);

#endif
