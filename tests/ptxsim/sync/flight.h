/* Asynchronous operations under way: issued by an instruction, landing when the schedule says so, in any order. A
 * destination is poisoned when the operation is issued; sources are read when it lands. */
#ifndef PTXSIM_FLIGHT_H
#define PTXSIM_FLIGHT_H

#include "mbarrier.h"

typedef enum flight_kind {
    FLY_IN,      /* global to shared, completes an mbarrier */
    FLY_OUT,     /* shared to global, of a bulk group */
    FLY_ACROSS,  /* shared to another CTA's shared, completes an mbarrier there */
    FLY_STORE,   /* st.async: registers to shared, completes an mbarrier */
    FLY_TILE_IN, /* of a tensor map */
    FLY_TILE_OUT,
    FLY_TENSOR, /* the next operation in the queue of the CTA that issued it; signalled is that CTA */
    FLY_ARRIVE, /* of a tcgen05.commit whose operations are done, at one CTA's mbarrier; group: how many; data[0]: late
                 */
} flight_kind;

typedef struct flight {
    flight_kind kind;
    const insn *in;
    cta *target; /* of the shared memory it writes */
    uint32_t to;
    cta *source; /* of the shared memory it reads */
    uint32_t from;
    uint8_t *global;
    uint32_t bytes;
    cta *signalled; /* NULL: no mbarrier */
    uint32_t mbarrier;
    uint32_t epoch;
    warp *warp; /* of a bulk group */
    uint32_t lane, group;
    bool again; /* the same data as another's, of one instruction: L2 is asked once */
    uint8_t data[16];
    uint8_t map[128];
    int32_t coordinates[5];
} flight;

/* Shared memory that a store has read and that nobody may write before its thread has waited. */
typedef struct bulk_source {
    const insn *in;
    cta *cta;
    uint32_t lane, group, from, bytes;
} bulk_source;

typedef struct bulk_groups {
    uint32_t committed[LANES];
    bulk_source *sources;
    uint32_t n;
} bulk_groups;

/* insn.flags of a tile inwards: cta_group::2; four rows of the tensor, each wherever it says (tile::gather4) */
enum { TILE_PAIR = 1, TILE_GATHER = 2, GATHERED_ROWS = 4 };

op_fn sim_exec_bulk, sim_exec_bulk_commit, sim_exec_bulk_wait, sim_exec_tile, sim_exec_store_async,
    sim_exec_copy_arrive;

void sim_flight_land(run *r, cluster *c); /* one of them */

/* flight_tile.c */
bool sim_tile_land(run *r, flight *f);

/* Parts of issuing; false after a report. */
bool sim_flight_start(run *r, const insn *in, uint32_t lane, flight *f);
bool sim_take_mbarrier(run *r, const insn *in, uint32_t lane, uint64_t address, flight *f);
bool sim_take_target(run *r, const insn *in, uint32_t lane, uint64_t address, flight *f);
bool sim_take_source(run *r, const insn *in, uint32_t lane, uint64_t address, uint32_t bytes, flight *f);
bool sim_deliver(run *r, const insn *in, uint32_t lane, uint64_t to, uint64_t barrier, uint32_t mask, flight *f);
bulk_groups *sim_bulk_groups(warp *w);
void sim_bulk_exit(run *r);
void sim_bulk_close(warp *w);

#endif
