/* Tensor memory of a CTA: 128 lanes of 512 columns of 32 bits, what is allocated of it, who used it when.
 *
 * Uses are recorded for sixteen lanes of a column at a time. Each names the warp and how many operations on tensor
 * memory that warp had issued; clock sets (shadow.h) say which of them a thread may count on. A thread may count on
 * what it knew at its last tcgen05.fence::after_thread_sync (`heeded`):
 *   what other warps told of (fence::before_thread_sync), for tcgen05.ld and st only once they waited;
 *   what tcgen05.commit reported of mma and cp, which ld and st always need, the issuing warp's own too.
 * Of mma and cp, PTX lets follow each other without that only: mma behind mma, with the same accumulator and shape; mma
 * behind cp. cp behind mma, over the scales that it reads, is a setting: public kernels rely on it. */
#ifndef PTXSIM_TMEM_H
#define PTXSIM_TMEM_H

#include "checks/shadow.h"

enum { TMEM_LANES = 128, TMEM_COLUMNS = 512, TMEM_GROUP = 16, TMEM_GROUPS = TMEM_LANES / TMEM_GROUP, TMEM_UNIT = 32 };
#define TMEM_ALL_GROUPS 0xffu

typedef enum tmem_use {
    TMEM_LOAD,
    TMEM_STORE,
    TMEM_OPERAND, /* mma reads A */
    TMEM_SCALE,   /* mma reads scales */
    TMEM_SUM,     /* mma writes D */
    TMEM_COPY,    /* cp writes */
    TMEM_FREE,    /* dealloc; nothing is recorded of it */
    TMEM_USES = TMEM_FREE
} tmem_use;

typedef struct tmem_span {
    uint32_t groups; /* a bit for sixteen lanes */
    uint32_t column, columns;
    uint32_t tile; /* of D: its place and shape in one number */
} tmem_span;

/* tcgen05.ld or st whose wait is yet to come. */
typedef struct tmem_access {
    const insn *in;
    uint32_t lane, column, mask, count;
    uint32_t *values; /* of a load: NULL until it has read; of a store: NULL once it has written */
} tmem_access;

typedef struct tmem_warp {
    uint32_t count;           /* operations issued */
    uint32_t last_mma[LANES]; /* that count at each lane's last mma or cp, which its commit reports */
    uint32_t last_product;    /* that count at the last mma of any lane */
    tmem_access *pending;
    uint32_t n_pending, most_pending;
    const insn *gathered; /* all lanes have come to it, and wait there for something else */
} tmem_warp;

typedef enum tmem_request_op { TMEM_NOTHING, TMEM_ALLOC, TMEM_DEALLOC } tmem_request_op;

/* What a CTA of a pair waits for the other to join in. */
typedef struct tmem_request {
    tmem_request_op op;
    uint32_t column, columns, warp; /* warp NONE: any, of a CTA that has yet to come */
    bool granted, waits;
} tmem_request;

typedef struct tmem {
    uint32_t cells[TMEM_LANES][TMEM_COLUMNS];
    uint32_t last[TMEM_USES][TMEM_GROUPS][TMEM_COLUMNS]; /* warp and count, 0: none */
    uint32_t tiles[TMEM_GROUPS][TMEM_COLUMNS];           /* of the last D there */
    uint8_t under_way[TMEM_USES][TMEM_GROUPS][TMEM_COLUMNS];
    uint32_t units; /* allocated, a bit for 32 columns */
    tmem_span allocations[TMEM_COLUMNS / TMEM_UNIT];
    uint32_t n_allocations, least;
    bool relinquished;
    tmem_request request;
    tmem_warp *warps;
    clock_set **heeded;      /* of each thread */
    struct tensor_op *queue; /* mma, cp, commit that this CTA issued and that have yet to run */
    uint32_t n_queue, most_queue;
    uint64_t collector; /* the last descriptor of A that was to be kept */
} tmem;

op_fn sim_exec_tmem_alloc, sim_exec_tmem_dealloc, sim_exec_tmem_relinquish, sim_exec_tmem_load, sim_exec_tmem_store,
    sim_exec_tmem_wait, sim_exec_tmem_fence;

tmem *sim_tmem(cta *c);
void sim_tmem_close(cta *c);
void sim_tmem_exit(run *r); /* the CTA's last thread has gone */

/* The operation that a warp issues now; of mma and cp, that a lane issues. */
uint32_t sim_tmem_issue(run *r);
uint32_t sim_tmem_issue_by(run *r, uint32_t lane);

/* Lanes begin to use a span; false after an error. `count` as issued. Until _end a load of what is written finds
 * poison. */
bool sim_tmem_begin(run *r, const insn *in, uint32_t lanes, cta *owner, tmem_span span, tmem_use use, uint32_t count);
void sim_tmem_end(cta *owner, tmem_span span, tmem_use use);
void sim_tmem_written(run *r, const insn *in, const cta *owner, tmem_span span); /* a note where it is not */
bool sim_tmem_allocated(run *r, const insn *in, const cta *owner, tmem_span span);

/* Into a set that a warp releases or that tcgen05.commit signals. */
void sim_tmem_release(const cta *c, uint32_t warp, clock_set *into);
void sim_tmem_done(const cta *c, uint32_t warp, uint32_t count, clock_set *into);

/* tmem_order.c */
bool sim_tmem_ordered(run *r, const insn *in, uint32_t lanes, cta *owner, tmem_span span, tmem_use use);
uint32_t sim_tmem_published(const cta *c, uint32_t warp);

/* The other CTA of a pair; NULL after a report where there is none, or it has exited. */
cta *sim_tmem_peer(run *r, const insn *in);

/* insn.flags of tcgen05 instructions */
enum {
    TENSOR_PAIR = 1,      /* cta_group::2 */
    TENSOR_A_TMEM = 2,    /* mma: A in tensor memory */
    TENSOR_NOT = 4,       /* mma: the predicate is negated */
    TENSOR_HALVES = 8,    /* ld, st: pack::16b, unpack::16b */
    TENSOR_MULTICAST = 8, /* commit */
    TENSOR_FILL = 16,     /* mma: A stays in the collector */
    TENSOR_USE = 32,      /* mma: A is there already */
};

#endif
