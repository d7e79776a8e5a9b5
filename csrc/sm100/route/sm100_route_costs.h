/* The cost model of a tile of the sm100 router. Stated, not measured: no such GPU was at hand. Only ratios matter. */
#ifndef NK_SM100_ROUTE_COSTS_H
#define NK_SM100_ROUTE_COSTS_H

#define SM100_ROUTE_CYCLES_PER_US 1850.0
#define SM100_ROUTE_BYTES_PER_CYCLE 48.0      /* that an SM gets from L2 */
#define SM100_ROUTE_MMA_N_CYCLES 2.0          /* MMAs of M 128 and K 64, for each 1 of N: 4096 multiply-adds a cycle */
#define SM100_ROUTE_FILL_CYCLES 3000.0        /* a launch, the first stage, the last MMA */
#define SM100_ROUTE_CLUSTER_CYCLES 600.0      /* the two barriers of a cluster */
#define SM100_ROUTE_PEER_BYTES_PER_CYCLE 24.0 /* of sums in other CTAs' shared memory */
#define SM100_ROUTE_TURN_CYCLES 2200.0        /* each warp routes one token */
#define SM100_ROUTE_THREAD_CYCLES 28.0        /* each thread routes one token, for each expert */

#endif
