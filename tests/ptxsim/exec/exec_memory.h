/* Declares what executes accesses to memory, cp.async and matrices in registers. */
#ifndef PTXSIM_EXEC_MEMORY_H
#define PTXSIM_EXEC_MEMORY_H

#include "sim.h"

op_fn sim_exec_load, sim_exec_store, sim_exec_atomic, sim_exec_copy, sim_exec_commit, sim_exec_wait, sim_exec_ldmatrix,
    sim_exec_movmatrix, sim_exec_stmatrix, sim_exec_mma, sim_exec_mma_scaled;

/* What an atomic does to memory; b and c are its operands. */
typedef enum atomic_op { A_ADD, A_MIN, A_MAX, A_AND, A_OR, A_XOR, A_EXCH, A_CAS, A_INC, A_DEC } atomic_op;

/* Whether two lanes of the warp write the same to the same place by this store. */
bool sim_same_store(const run *r, const insn *in, uint32_t lane, uint32_t other);

struct copy {
    uint32_t lane, group, to, size, valid;
    const uint8_t *from;
    const insn *in;
    bool landed; /* early */
};

#endif
