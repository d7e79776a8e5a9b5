/* Memory that kernels can reach: allocations of the device and the windows of generic addresses. */
#ifndef PTXSIM_MEMORY_H
#define PTXSIM_MEMORY_H

#include "sim.h"

/* Global addresses are the host's own. Bits 56 and up tell the windows of the other spaces apart; bits 24 to 31 of a
 * shared address are the rank of its CTA in the cluster. */
#define WINDOW_SHIFT 56
#define SHARED_WINDOW ((uint64_t)1 << WINDOW_SHIFT)
#define LOCAL_WINDOW ((uint64_t)2 << WINDOW_SHIFT)
#define PARAM_WINDOW ((uint64_t)3 << WINDOW_SHIFT)
#define RANK_SHIFT 24
#define RANK_MASK 0xff000000u

typedef struct extent {
    uint64_t begin, end;
    size_t reserved; /* of addresses, with what lies unused on both sides; 0: the caller's memory */
} extent;

void *sim_memory_allocate(size_t bytes); /* poisoned */
bool sim_memory_free(const void *begin);
void sim_memory_adopt(const void *begin, size_t bytes); /* the caller's memory; replaces what overlaps */
extent *sim_memory_extents(uint32_t *count);            /* a sorted copy */

typedef enum access { READ, WRITE, ATOMIC, LANDING } access;

/* Where `bytes` at an address of a space are, for one lane; NULL after a report. Shared memory is shadowed. */
uint8_t *sim_locate(run *r, const insn *in, uint32_t lane, space space, uint64_t address, uint32_t bytes, access how);

/* Whether global memory is live there; makes its extent the one used last (r->lo, hi). */
bool sim_memory_find(run *r, uint64_t address, uint32_t bytes);

/* The CTA whose shared memory an address means; NULL after a report. */
cta *sim_owner(run *r, const insn *in, uint32_t lane, space space, uint64_t address, uint32_t bytes, access how);

/* The address operand o[slot] of one lane, displacement added. */
uint64_t sim_address_at(const run *r, const insn *in, int slot, uint32_t lane);

/* An address that sim_push_address (decode.h) put into the list at `index`. */
uint64_t sim_listed_address(const run *r, const insn *in, uint32_t index, uint32_t lane);
#define LISTED_32_BITS 2u /* of its first entry */

#endif
