/* Bytes as L2 sees them. */
#ifndef PTXSIM_TRAFFIC_H
#define PTXSIM_TRAFFIC_H

#include "memory.h"

void sim_traffic_open(launch *l);
void sim_traffic_close(launch *l); /* fills stats.touched_bytes */

/* An access inside the extent that r->lo, r->hi and r->first_bit are of. */
void sim_traffic(run *r, uint64_t address, uint32_t bytes, access how);
void sim_traffic_anew(run *r); /* what follows is of another request */

/* With PTXSIM_WAVEFRONTS=1, an access to shared memory of `bytes` by each lane of a mask. */
void sim_wavefronts(run *r, const insn *in, uint32_t lanes, uint32_t bytes);

#endif
