/* Facts of sm100_gemm.cu that its test needs too: sizes, the shared-memory map, the variants. Plain C. */
#ifndef SM100_GEMM_CONFIG_CUH
#define SM100_GEMM_CONFIG_CUH

#define TILE_M 128 /* rows of D of one CTA; a pair (cta_group::2) has twice as many */
#define TILE_K 256 /* a row of a stage: 128 bytes, the span of the swizzle */
#define BLOCK_K 64 /* of one MMA: four scale factors a row, one atom for 128 rows */
#define BLOCKS (TILE_K / BLOCK_K)
#define ATOM_BYTES 512
#define STAGES 4
#define ACCUMULATORS 3
#define CLC_SLOTS 2 /* responses of cluster launch control */
#define CLC_BYTES 16

#define WARP_PRODUCER 0
#define WARP_MMA 1
#define WARP_TMEM 2
#define WARP_SCHEDULER 3
#define WARP_EPILOGUE 4 /* and the three behind it; a multiple of 4: warp % 4 names its lanes of tensor memory */
#define EPILOGUE_WARPS 4
#define THREADS (32 * (WARP_EPILOGUE + EPILOGUE_WARPS))

/* Tensor memory, columns: the accumulators, then the scale factors of each stage. */
#define TMEM_COLUMNS 512
#define SF_COLUMNS 4 /* of an atom */
#define SF_STAGE_COLUMNS (2 * BLOCKS * SF_COLUMNS)
#define SF_COLUMN(n) (ACCUMULATORS * (n))

/* Shared memory, bytes: the stages (A, B, SFA, SFB), the epilogue's boxes (two a warp), mbarriers and the rest. */
#define A_BYTES (TILE_M * TILE_K / 2)
#define B_BYTES(cta_group, n) ((n) / (cta_group) * TILE_K / 2)
#define SF_BYTES (BLOCKS * ATOM_BYTES)
#define STAGE_BYTES(cta_group, n) (A_BYTES + B_BYTES(cta_group, n) + 2 * SF_BYTES)
#define BOX_COLUMNS 64 /* of fp16: 128 bytes */
#define BOX_BYTES (32 * BOX_COLUMNS * 2)
#define BOXES 2
#define BOX_AT(cta_group, n) (STAGES * STAGE_BYTES(cta_group, n))
#define BARRIER_AT(cta_group, n) (BOX_AT(cta_group, n) + EPILOGUE_WARPS * BOXES * BOX_BYTES)
#define SMEM_BYTES(cta_group, n) (BARRIER_AT(cta_group, n) + 256)

/* How many CTAs load a part each of an operand's tile, for all of them; of SFA as of A. */
#define A_PARTS(groups, share) ((share) == SHARE_A ? (groups) : 1)
#define B_PARTS(groups, share) ((share) == SHARE_B ? (groups) : 1)
#define SFB_PARTS(cta_group, groups, share) ((cta_group) * B_PARTS(groups, share))

/* A cluster's tile. */
#define CLUSTER_ROWS(cta_group, groups, share) (TILE_M * (cta_group) * ((share) == SHARE_B ? (groups) : 1))
#define CLUSTER_COLUMNS(groups, share, n) ((n) * ((share) == SHARE_A ? (groups) : 1))

#define SHARE_NONE 0
#define SHARE_A 1 /* the groups of a cluster lie along N */
#define SHARE_B 2 /* along M */
#define STATIC 0
#define CLC 1

/* V(name, CTAs of an MMA, such groups of a cluster, what the groups share, columns of a tile, schedule) */
#define SM100_GEMM_VARIANTS(V)                  \
    V(one, 1, 1, SHARE_NONE, 64, STATIC)        \
    V(one_wide, 1, 1, SHARE_NONE, 128, STATIC)  \
    V(one_share_b, 1, 2, SHARE_B, 64, STATIC)   \
    V(pair, 2, 1, SHARE_NONE, 64, STATIC)       \
    V(pair_wide, 2, 1, SHARE_NONE, 128, STATIC) \
    V(pair_share_a, 2, 2, SHARE_A, 64, STATIC)  \
    V(pair_share_b, 2, 2, SHARE_B, 64, STATIC)  \
    V(pair_clc, 2, 2, SHARE_B, 64, CLC)

#endif
