/* Tiles of the sm100 GEMM family, its scheduler parameters, shared memory and tensor memory, for host and device.
 *
 * M and N are those of the MMA (tcgen05.mma): a row of operand M is a lane of tensor memory, a row of operand N is a
 * column. The plan says which of them the tokens are. Dual GEMMs have a second operand M, the up matrix. */
#ifndef NK_SM100_GEMM_CONFIG_H
#define NK_SM100_GEMM_CONFIG_H

#include "nk_format.h"
#include "nk_problem.h"

#include <stdbool.h>

#define SM100_GEMM_CTA_M 128  /* rows of operand M in a CTA; a pair's MMA has 256 */
#define SM100_GEMM_TILE_K 256 /* of a stage, which is one step of K: 128 bytes of codes a row, the swizzle's span */
#define SM100_GEMM_MMA_K 64   /* four scale factors a row: an atom for 128 rows */
#define SM100_GEMM_K_BLOCKS (SM100_GEMM_TILE_K / SM100_GEMM_MMA_K) /* MMAs of a stage */
#define SM100_GEMM_CODE_BYTES (SM100_GEMM_TILE_K / 2)
#define SM100_GEMM_SF_BYTES (SM100_GEMM_K_BLOCKS * NK_SF_ATOM_BYTES) /* of 128 rows in a stage */

/* X(name, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS, ACCUMULATORS of dual GEMMs, PAIRS)
 *
 * A tile is CTA_GROUP x 128 rows of operand M by MMA_N rows of operand N. With CTA_GROUP 2 a pair of CTAs shares one
 * MMA: each CTA loads its 128 rows of operand M and half of operand N. Dual GEMMs have 128 rows of either weight
 * matrix for each CTA. SPLIT_K CTAs or pairs of a cluster divide K. PAIRS pairs of a cluster have tiles beside each
 * other along M and load one operand N for all of them by multicast. */
#define SM100_GEMM_COMMON_TILES(X) \
    X(n64, 1, 64, 1, 3, 2, 1)      \
    X(n128, 1, 128, 1, 2, 1, 1)    \
    X(p64, 2, 64, 1, 3, 2, 1)      \
    X(p128, 2, 128, 1, 2, 1, 1)    \
    X(p192, 2, 192, 1, 2, 1, 1)

/* Not for dual GEMMs: tensor memory has no room for a second accumulator of this width. */
#define SM100_GEMM_WIDE_TILES(X) X(p256, 2, 256, 1, 1, 0, 1)

/* Not for grouped GEMMs. */
#define SM100_GEMM_SPLIT_TILES(X) \
    X(n64k4, 1, 64, 4, 3, 2, 1)   \
    X(p128k2, 2, 128, 2, 2, 1, 1)
#define SM100_GEMM_MULTICAST_TILES(X) X(p192m2, 2, 192, 1, 2, 1, 2)
#define SM100_GEMM_WIDE_MULTICAST_TILES(X) X(p256m2, 2, 256, 1, 1, 0, 2)

#define SM100_GEMM_TILES(X)    \
    SM100_GEMM_COMMON_TILES(X) \
    SM100_GEMM_WIDE_TILES(X) SM100_GEMM_SPLIT_TILES(X) SM100_GEMM_MULTICAST_TILES(X) SM100_GEMM_WIDE_MULTICAST_TILES(X)
#define SM100_GEMM_DUAL_TILES(X) SM100_GEMM_COMMON_TILES(X) SM100_GEMM_SPLIT_TILES(X) SM100_GEMM_MULTICAST_TILES(X)
#define SM100_GEMM_GROUPED_TILES(X) SM100_GEMM_COMMON_TILES(X) SM100_GEMM_WIDE_TILES(X)
#define SM100_GEMM_GROUPED_DUAL_TILES(X) SM100_GEMM_COMMON_TILES(X)

enum {
#define SM100_GEMM_INDEX(name, ...) SM100_GEMM_##name,
    SM100_GEMM_TILES(SM100_GEMM_INDEX)
#undef SM100_GEMM_INDEX
        SM100_GEMM_TILE_COUNT
};

/* Warps. The epilogue's come first, since warp w of it reads lanes 32 w .. + 31 of tensor memory. */
#define SM100_GEMM_EPILOGUE_WARPS 4
#define SM100_GEMM_SF_WARPS 4
#define SM100_GEMM_PRODUCER_WARP (SM100_GEMM_EPILOGUE_WARPS + SM100_GEMM_SF_WARPS)
#define SM100_GEMM_MMA_WARP (SM100_GEMM_PRODUCER_WARP + 1)
#define SM100_GEMM_THREADS (32 * (SM100_GEMM_MMA_WARP + 1))

/* Tiles with multicast have a dynamic scheduler: one more warp asks launch control for the next tile. Clusters of four
 * need not all find room at once, and in a static order a late one would still have as many tiles to do. */
#define SM100_GEMM_IS_DYNAMIC(pairs) ((pairs) > 1)
#define SM100_GEMM_SCHEDULER_WARP (SM100_GEMM_MMA_WARP + 1)
#define SM100_GEMM_CTA_THREADS(pairs) (SM100_GEMM_THREADS + (SM100_GEMM_IS_DYNAMIC(pairs) ? 32 : 0))
#define SM100_GEMM_SCHEDULER_STAGES 2 /* launch control's responses that are under way or not yet read by all */

/* Shared memory: struct mxf4nvf4_smem of sm100_gemm_traits.cuh, whose size run_mxf4nvf4() compares. There are as many
 * stages as fit beside barriers, the inbox and, with experts, their table. */
#define SM100_GEMM_N_ATOMS(mma_n) (((mma_n) + NK_SF_ATOM_ROWS - 1) / NK_SF_ATOM_ROWS) /* of operand N in an MMA */
#define SM100_GEMM_STAGE_BYTES(cta_group, mma_n, matrices)                             \
    (((matrices) * SM100_GEMM_CTA_M + (mma_n) / (cta_group)) * SM100_GEMM_CODE_BYTES + \
     ((matrices) + SM100_GEMM_N_ATOMS(mma_n)) * SM100_GEMM_SF_BYTES)
/* With split K each CTA has the epilogue of MMA_N / SPLIT_K columns, and gets its peers' partial sums of these. */
#define SM100_GEMM_INBOX_BYTES(mma_n, split_k, matrices) \
    (((split_k) - 1) * (matrices) * ((mma_n) / (split_k)) * SM100_GEMM_CTA_M * 4)
#define SM100_GEMM_SMEM_CAPACITY (227 * 1024)
#define SM100_GEMM_BARRIER_BYTES 1024
#define SM100_GEMM_EXPERTS_ROOM 8192 /* for 511 experts; for more only if stages leave room */
#define SM100_GEMM_STAGES(cta_group, mma_n, split_k, matrices)                        \
    ((SM100_GEMM_SMEM_CAPACITY - SM100_GEMM_BARRIER_BYTES - SM100_GEMM_EXPERTS_ROOM - \
      SM100_GEMM_INBOX_BYTES(mma_n, split_k, matrices)) /                             \
     SM100_GEMM_STAGE_BYTES(cta_group, mma_n, matrices))
#define SM100_GEMM_SMEM(cta_group, mma_n, split_k, matrices)                                                       \
    (SM100_GEMM_STAGES(cta_group, mma_n, split_k, matrices) * SM100_GEMM_STAGE_BYTES(cta_group, mma_n, matrices) + \
     SM100_GEMM_INBOX_BYTES(mma_n, split_k, matrices) + SM100_GEMM_BARRIER_BYTES)

/* Tensor memory: the accumulators, then the scale factors of the last stages. */
#define SM100_GEMM_TMEM_COLUMNS 512
#define SM100_GEMM_SF_ATOM_COLUMNS 4
#define SM100_GEMM_SF_COLUMNS (SM100_GEMM_K_BLOCKS * SM100_GEMM_SF_ATOM_COLUMNS) /* of 128 rows in a stage */

enum { SM100_GEMM_OPERAND_M, SM100_GEMM_OPERAND_N, SM100_GEMM_OPERAND_UP, SM100_GEMM_OPERANDS };

/* The tile scheduler's parameters. Tiles are numbered batch by batch; in a batch M runs fastest. */
typedef struct sm100_gemm_scheduler {
    bool tokens_are_mma_m;                     /* else weights are operand M, and tokens operand N */
    bool sf_by_bulk_copy[SM100_GEMM_OPERANDS]; /* scale factors, as whole atoms; else threads arrange them */
    bool one_matrix[SM100_GEMM_OPERANDS];      /* the same for all batches */
    int32_t mma_m_tiles, mma_n_tiles;          /* of a batch */
    int32_t tiles;                             /* of all batches; with experts as many as there can be */
    int32_t k_steps;
    int32_t up_row_in_atom; /* blocked scale factors: where in an atom the up matrix begins, behind rows of gates */
} sm100_gemm_scheduler;

/* Contiguous grouped GEMM: expert g has tokens offsets[g] .. offsets[g+1], on the device, and the weights of batch g.
 * If `rows` has data, these are rows of the result, and it says which token each is. */
typedef struct sm100_gemm_experts {
    const int32_t *offsets;
    int64_t count;
    int64_t atom_rows; /* blocked scale factors of the tokens: 128 rows each */
    nk_token_rows rows;
} sm100_gemm_experts;

/* An entry of a CTA's table of experts; one more entry, behind the last expert, says where all end. */
typedef struct sm100_gemm_expert {
    int32_t first_tile, first_row, first_atom, unused;
} sm100_gemm_expert;
#define SM100_GEMM_EXPERT_BYTES(experts) ((int64_t)sizeof(sm100_gemm_expert) * ((experts) + 1))

#endif
