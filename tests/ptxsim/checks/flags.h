/* Flags in global memory, by which CTAs tell each other that what they stored there may be read: releases and acquires
 * of more than a CTA, by fences beside relaxed accesses or by the accesses themselves. With scopes alone.
 *
 * A release publishes what its thread knows of its cluster's clocks; the flag keeps that, and so do atomics that follow
 * on it. Who reads the flag and acquires notes it at a clock of its own: who knows of that clock may count on it. */
#ifndef PTXSIM_FLAGS_H
#define PTXSIM_FLAGS_H

#include "sim.h"

struct flag_reader;

/* insn.type of fences, and of accesses that are not weak; what they reach. */
enum { SEM_STRONG = 1, SEM_ACQUIRE = 2, SEM_RELEASE = 4, SEM_CLUSTER = 8, SEM_GPU = 16 };
#define SEM_REACH (SEM_CLUSTER | SEM_GPU)

void sim_flags_open(launch *l);
void sim_flags_close(launch *l);
void sim_flags_leave(cluster *c);
void sim_flags_forget(struct flag_reader *reader); /* of a thread */

void sim_flags_fence(run *r, const insn *in);
/* A lane's strong access to an address of global memory. */
void sim_flags_read(run *r, const insn *in, uint32_t lane, uint64_t address);
void sim_flags_write(run *r, const insn *in, uint32_t lane, uint64_t address, bool atomically);

/* Whether a lane may count on what a thread of a cluster did at an epoch. */
bool sim_flags_tell(run *r, uint32_t lane, uint32_t cluster, uint32_t epoch);

#endif
