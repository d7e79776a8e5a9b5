/* Divergence: a warp's lanes as fragments that part, wait, gather and rejoin. */
#ifndef PTXSIM_FRAGMENT_H
#define PTXSIM_FRAGMENT_H

#include "sim.h"

/* Both: the fragment to go on with, NULL if it waits for others. */
fragment *sim_rejoin(warp *w, fragment *f);
void sim_part(run *r, uint32_t taken, uint32_t target, uint32_t rejoin);

/* The lanes leave for good; their fragment may be gone afterwards. */
void sim_leave(run *r, uint32_t lanes);

/* A collective instruction of `members`: true when all that are alive have come to it, with r->mask the union;
 * otherwise the fragment waits for them. */
bool sim_gather(run *r, uint32_t members);

/* Lets fragments that wait for a reason about `what` (any: UINT64_MAX) go on, behind their instruction or at it. */
void sim_wake(cta *c, wait_reason reason, uint64_t what, bool behind);

#endif
