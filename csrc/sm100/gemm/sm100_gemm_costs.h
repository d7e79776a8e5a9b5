/* The cost model of the sm100 GEMM family. Stated, not measured: no such GPU was at hand. Only ratios matter. */
#ifndef NK_SM100_GEMM_COSTS_H
#define NK_SM100_GEMM_COSTS_H

#define SM100_GEMM_CYCLES_PER_US 1850.0
#define SM100_GEMM_MMA_N_CYCLES 0.5        /* an MMA of M 128 x K 64, per column: 16384 multiply-adds a cycle */
#define SM100_GEMM_OPERAND_ROW_CYCLES 0.25 /* the same, per operand row of 32 bytes: shared memory gives 128 a cycle \
                                            */
#define SM100_GEMM_BYTES_PER_CYCLE 48.0    /* that L2 gives an SM if all ask */
/* That an SM takes: a multicast is given once, and arrives at each. */
#define SM100_GEMM_ARRIVING_BYTES_PER_CYCLE 64.0
#define SM100_GEMM_FILL_CYCLES 2000.0    /* a launch, the first stage */
#define SM100_GEMM_PAIR_CYCLES 500.0     /* the same, for each pair: its cluster barrier, and the follower's arrivals */
#define SM100_GEMM_SPLIT_K_CYCLES 1500.0 /* of a tile: CTAs wait for each other's partial sums */
#define SM100_GEMM_EPILOGUE_CYCLES 300.0 /* from a tile's last MMA to its last store */
#define SM100_GEMM_EPILOGUE_N_CYCLES 6.0 /* the same, per column */

#endif
