/* What releases and acquires of more than a CTA (insn.place) are needed for: counts by place, no findings. */
#ifndef PTXSIM_SCOPES_H
#define PTXSIM_SCOPES_H

#include "sim.h"

/* `times` it was executed, and how often of these it took more than a CTA. */
void sim_scope_executed(run *r, const insn *in, uint32_t times, uint32_t needed);
void sim_scope_needed(run *r, uint32_t place); /* by an access, later */

void sim_scopes_keep(const launch *l); /* adds a launch's counts to all others' */
void sim_scopes_clear(void);
void sim_scopes_json(FILE *to); /* [..] */

#endif
