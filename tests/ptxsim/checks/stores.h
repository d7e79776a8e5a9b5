/* Ordinary stores to global memory within a launch, which an asynchronous load may count on only behind a fence of both
 * proxies. Kept where a kernel has such loads, for sixteen bytes at a time: who stored there last, and when. */
#ifndef PTXSIM_STORES_H
#define PTXSIM_STORES_H

#include "machine/memory.h"

void sim_stores_open(launch *l);
void sim_stores_close(launch *l);

/* An access that sim_locate has just found: a lane's store or atomic; an asynchronous operation's. */
void sim_stored(run *r, uint32_t lane, uint64_t address, uint32_t bytes);
void sim_stored_async(run *r, uint64_t address, uint32_t bytes);

void sim_stores_fence(run *r); /* one of global memory */

/* Whether any check of what is loaded from the extent of an address can find something. */
bool sim_stores_matter(run *r, uint64_t address);
/* What a lane is about to load asynchronously: false after a warning. */
bool sim_stores_check(run *r, const insn *in, uint32_t lane, uint64_t address, uint32_t bytes);

#endif
