/* Ordinary stores to global memory within a launch: who stored there last, and when. An asynchronous load may count on
 * them only behind a fence of both proxies; with scopes, a load of another CTA only behind a release and an acquire
 * that reach it. Kept where a kernel has such loads, for sixteen bytes at a time, or with scopes, for four. */
#ifndef PTXSIM_STORES_H
#define PTXSIM_STORES_H

#include "machine/memory.h"

void sim_stores_open(launch *l);
void sim_stores_close(launch *l);

/* An access that sim_locate has just found: a lane's store or atomic; an asynchronous operation's. */
void sim_stored(run *r, uint32_t lane, uint64_t address, uint32_t bytes);
void sim_stored_async(run *r, uint64_t address, uint32_t bytes);

/* What a lane has just loaded, with scopes: false after a warning. */
bool sim_stores_seen(run *r, const insn *in, uint32_t lane, uint64_t address, uint32_t bytes);

void sim_stores_fence(run *r); /* one of global memory */

/* Whether any check of what is loaded from the extent of an address can find something. */
bool sim_stores_matter(run *r, uint64_t address);
/* What a lane is about to load asynchronously: false after a warning. */
bool sim_stores_check(run *r, const insn *in, uint32_t lane, uint64_t address, uint32_t bytes);

#endif
