/* tcgen05.mma, cp and commit: issued by a thread, run later. What a CTA issues runs in its order; when, the schedule
 * says. Shared memory and tensor memory are read when an operation runs. */
#ifndef PTXSIM_TCGEN05_H
#define PTXSIM_TCGEN05_H

#include "tmem.h"
#include "num/num_layout.h"
#include "sync/flight.h"

#define MOST_SPANS 4

/* Of CTA `owner`, until the operation has run. */
typedef struct tensor_use {
    cta *owner;
    tmem_span span;
    tmem_use use;
} tensor_use;

typedef struct tensor_op {
    const insn *in;
    warp *warp;
    uint32_t lane, count; /* as sim_tmem_issue gave it */
    uint64_t a, b;        /* descriptors; a: of cp the source, an address where A is in tensor memory */
    uint32_t d, sfa, sfb; /* columns; d: of cp the destination */
    num_instruction shape;
    bool accumulates;
    uint32_t barrier, mask, epoch; /* commit: shared byte, ranks */
    tensor_use uses[2 * MOST_SPANS];
    uint32_t n_uses;
} tensor_op;

op_fn sim_exec_tensor_mma, sim_exec_tensor_cp, sim_exec_tensor_commit;

/* Issuing: the CTAs that take part (one, or the pair, with this CTA first), 0 after a report. */
uint32_t sim_tensor_ctas(run *r, const insn *in, cta *ctas[2]);
bool sim_tensor_claim(run *r, tensor_op *op, cta *owner, tmem_span span, tmem_use use);
void sim_tensor_queue(run *r, const tensor_op *op);

/* Whether the engine has a moment, and its next operation of a CTA; false after a report. */
bool sim_tensor_ready(run *r, const flight *f);
bool sim_tensor_run(run *r, cta *issuer);
bool sim_tensor_arrive(run *r, const flight *f); /* a commit's arrival lands */

/* A matrix in shared memory, 16 bytes at a time. */
typedef struct tensor_matrix {
    num_smem_matrix at;
    uint32_t rows, bytes;
    bool mn_major; /* `rows` along K, `bytes` along M or N */
} tensor_matrix;

uint32_t sim_tensor_byte(const tensor_matrix *m, uint32_t row, uint32_t byte);
bool sim_tensor_describe(run *r, const insn *in, uint64_t bits, tensor_matrix *m);
/* Its bytes are going to be read, or have been. */
bool sim_tensor_reading(run *r, const insn *in, uint32_t lane, cta *owner, const tensor_matrix *m);
void sim_tensor_have_read(cta *owner, const tensor_matrix *m);

/* tcgen05_mma.c */
void sim_tensor_multiply(run *r, const tensor_op *op, cta *const ctas[2], uint32_t n);

#endif
