/* What a tile of the sm100 router costs. Stated, not measured: no such GPU was at hand. Only ratios choose. */
#ifndef NK_SM100_ROUTE_COSTS_H
#define NK_SM100_ROUTE_COSTS_H

#define SM100_ROUTE_CYCLES_PER_US 1850.0
#define SM100_ROUTE_BYTES_PER_CYCLE 48.0 /* that an SM gets from L2 */
#define SM100_ROUTE_COLUMN_CYCLES 2.0    /* products of 128 lanes x 64 of K, for a column: 4096 multiply-adds a cycle */
#define SM100_ROUTE_FILL_CYCLES 3000.0   /* a launch, the first stage, the last product */
#define SM100_ROUTE_MEET_CYCLES 600.0    /* of a cluster: its CTAs wait for each other, twice */
#define SM100_ROUTE_PEER_BYTES_PER_CYCLE 24.0 /* of sums in other CTAs' shared memory */
#define SM100_ROUTE_TURN_CYCLES 2200.0        /* a token of each warp */
#define SM100_ROUTE_THREAD_CYCLES 28.0        /* a token of each thread, for an expert */

#endif
