/* What a tile of the sm100 GEMM family costs. Stated, not measured: no such GPU was at hand. Only ratios choose. */
#ifndef NK_SM100_GEMM_COSTS_H
#define NK_SM100_GEMM_COSTS_H

#define SM100_GEMM_CYCLES_PER_US 1850.0
#define SM100_GEMM_COLUMN_CYCLES \
    0.5                            /* a product of 128 lanes x 64 of K, for each column: 16384 multiply-adds a cycle */
#define SM100_GEMM_ROW_CYCLES 0.25 /* the same, for the 32 bytes of a row: shared memory gives 128 a cycle */
#define SM100_GEMM_BYTES_PER_CYCLE 48.0 /* that L2 gives an SM where all ask */
#define SM100_GEMM_ARRIVING_BYTES_PER_CYCLE                                                                    \
    64.0                                   /* that an SM takes; a multicast is given once, and arrives at each \
                                            */
#define SM100_GEMM_FILL_CYCLES 2000.0      /* a launch, the first stage */
#define SM100_GEMM_PAIR_CYCLES 500.0       /* the same, of each pair: its CTAs meet, and one tells the other */
#define SM100_GEMM_PARTS_CYCLES 1500.0     /* of a split tile: CTAs wait for each other's sums */
#define SM100_GEMM_TILE_CYCLES 300.0       /* from a tile's last product to its last store */
#define SM100_GEMM_STORE_COLUMN_CYCLES 6.0 /* the same, for each column */

#endif
