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
#define SM100_GEMM_TILE_K 256 /* elements of a stage, one step: 128 bytes of codes a row, the swizzle's span */
#define SM100_GEMM_MMA_K 64   /* elements of one MMA: four scale factors a row, an atom for 128 rows */
#define SM100_GEMM_K_BLOCKS (SM100_GEMM_TILE_K / SM100_GEMM_MMA_K)   /* of a stage: MMAs of each matrix */
#define SM100_GEMM_CODE_BYTES (SM100_GEMM_TILE_K / 2)                /* of a row in a stage */
#define SM100_GEMM_SF_BYTES (SM100_GEMM_K_BLOCKS * NK_SF_ATOM_BYTES) /* of 128 rows in a stage */

/* X(name, CTA_GROUP, MMA_N, SPLIT_K, ACCUMULATORS, ACCUMULATORS of dual GEMMs, PAIRS)
 *
 * Names: n<MMA_N> for one CTA, p<MMA_N> for a pair, then k<SPLIT_K> or m<PAIRS>.
 *
 * A tile is CTA_GROUP x 128 rows of operand M by MMA_N rows of operand N. With CTA_GROUP 2 a pair of CTAs shares one
 * MMA: each CTA loads its 128 rows of operand M and half of operand N. Dual GEMMs have 128 rows of either weight
 * matrix for each CTA. SPLIT_K CTAs or pairs of a cluster divide K. PAIRS pairs of a cluster have tiles beside each
 * other along M and load one operand N for all of them by multicast. */
#define SM100_GEMM_ONE_CTA_TILES(X) \
    X(n64, 1, 64, 1, 3, 2, 1)       \
    X(n128, 1, 128, 1, 2, 1, 1)
#define SM100_GEMM_COMMON_TILES(X) \
    SM100_GEMM_ONE_CTA_TILES(X)    \
    X(p64, 2, 64, 1, 3, 2, 1)      \
    X(p128, 2, 128, 1, 2, 1, 1)    \
    X(p192, 2, 192, 1, 2, 1, 1)

/* Not for dual GEMMs: tensor memory has no room for a second accumulator of this width. */
#define SM100_GEMM_WIDE_TILES(X) X(p256, 2, 256, 1, 1, 0, 1)

/* The next three are not for grouped GEMMs. Experts fill SMs without a split of K. Multicast has a dynamic scheduler,
 * which needs a cluster for each tile, and the host does not know how many tiles experts have. */
#define SM100_GEMM_SPLIT_TILES(X) \
    X(n64k4, 1, 64, 4, 3, 2, 1)   \
    X(p128k2, 2, 128, 2, 2, 1, 1)
#define SM100_GEMM_MULTICAST_TILES(X) X(p192m2, 2, 192, 1, 2, 1, 2)
/* Not for dual GEMMs, as SM100_GEMM_WIDE_TILES. */
#define SM100_GEMM_WIDE_MULTICAST_TILES(X) X(p256m2, 2, 256, 1, 1, 0, 2)

#define SM100_GEMM_TILES(X)    \
    SM100_GEMM_COMMON_TILES(X) \
    SM100_GEMM_WIDE_TILES(X) SM100_GEMM_SPLIT_TILES(X) SM100_GEMM_MULTICAST_TILES(X) SM100_GEMM_WIDE_MULTICAST_TILES(X)
#define SM100_GEMM_DUAL_TILES(X) SM100_GEMM_COMMON_TILES(X) SM100_GEMM_SPLIT_TILES(X) SM100_GEMM_MULTICAST_TILES(X)
#define SM100_GEMM_GROUPED_TILES(X) SM100_GEMM_COMMON_TILES(X) SM100_GEMM_WIDE_TILES(X)
#define SM100_GEMM_GROUPED_DUAL_TILES(X) SM100_GEMM_COMMON_TILES(X)
/* Those of grouped_gemm with an activation: few, since each is 15 KB of a wheel. */
#define SM100_GEMM_ACTIVATED_TILES(X) SM100_GEMM_ONE_CTA_TILES(X) SM100_GEMM_WIDE_TILES(X)

enum {
#define SM100_GEMM_INDEX(name, ...) SM100_GEMM_##name,
    SM100_GEMM_TILES(SM100_GEMM_INDEX)
#undef SM100_GEMM_INDEX
        SM100_GEMM_TILE_COUNT
};

/* Warps. The epilogue's first warp is a multiple of 4: hardware lets warp w read lanes 32 (w % 4) .. + 31 alone. */
#define SM100_GEMM_EPILOGUE_WARPS 4
#define SM100_GEMM_SF_WARPS 4
#define SM100_GEMM_PRODUCER_WARP (SM100_GEMM_EPILOGUE_WARPS + SM100_GEMM_SF_WARPS)
#define SM100_GEMM_MMA_WARP (SM100_GEMM_PRODUCER_WARP + 1)
#define SM100_GEMM_THREADS (32 * (SM100_GEMM_MMA_WARP + 1))

/* Tiles with multicast have a dynamic scheduler: one more warp asks cluster launch control (PTX clusterlaunchcontrol)
 * for the next tile. Not all clusters of four may find room at once, and a late one would keep its full share of a
 * static order. */
#define SM100_GEMM_IS_DYNAMIC(pairs) ((pairs) > 1)
#define SM100_GEMM_SCHEDULER_WARP (SM100_GEMM_MMA_WARP + 1)
#define SM100_GEMM_CTA_THREADS(pairs) (SM100_GEMM_THREADS + (SM100_GEMM_IS_DYNAMIC(pairs) ? 32 : 0))
#define SM100_GEMM_SCHEDULER_STAGES 2 /* launch control's responses that are under way or not yet read by all */

/* Shared memory: struct mxf4nvf4_smem of sm100_gemm_traits.cuh, whose size run_mxf4nvf4() compares. There are as many
 * stages as fit beside the rest, the inbox and the table of experts. */
#define SM100_GEMM_N_ATOM_ROWS(mma_n) (((mma_n) + NK_SF_ATOM_ROWS - 1) / NK_SF_ATOM_ROWS) /* of operand N in an MMA */
#define SM100_GEMM_STAGE_BYTES(cta_group, mma_n, matrices)                             \
    (((matrices) * SM100_GEMM_CTA_M + (mma_n) / (cta_group)) * SM100_GEMM_CODE_BYTES + \
     ((matrices) + SM100_GEMM_N_ATOM_ROWS(mma_n)) * SM100_GEMM_SF_BYTES)
/* Each CTA of a split stores MMA_N / SPLIT_K columns, and receives SPLIT_K - 1 peers' partial sums of them. */
#define SM100_GEMM_INBOX_BYTES(mma_n, split_k, matrices) \
    (((split_k) - 1) * (matrices) * ((mma_n) / (split_k)) * SM100_GEMM_CTA_M * 4)
#define SM100_GEMM_SMEM_CAPACITY (227 * 1024)
#define SM100_GEMM_REST_BYTES 1024   /* room for all behind stages and inbox but the table of experts */
#define SM100_GEMM_EXPERTS_ROOM 8192 /* for 511 experts; for more only if stages leave room */
#define SM100_GEMM_STAGES(cta_group, mma_n, split_k, matrices)                     \
    ((SM100_GEMM_SMEM_CAPACITY - SM100_GEMM_REST_BYTES - SM100_GEMM_EXPERTS_ROOM - \
      SM100_GEMM_INBOX_BYTES(mma_n, split_k, matrices)) /                          \
     SM100_GEMM_STAGE_BYTES(cta_group, mma_n, matrices))
#define SM100_GEMM_SMEM(cta_group, mma_n, split_k, matrices)                                                       \
    (SM100_GEMM_STAGES(cta_group, mma_n, split_k, matrices) * SM100_GEMM_STAGE_BYTES(cta_group, mma_n, matrices) + \
     SM100_GEMM_INBOX_BYTES(mma_n, split_k, matrices) + SM100_GEMM_REST_BYTES)

/* Tensor memory: the accumulators, then the scale factors of the last stages. */
#define SM100_GEMM_TMEM_COLUMNS 512
#define SM100_GEMM_SF_ATOM_COLUMNS 4
#define SM100_GEMM_SF_COLUMNS (SM100_GEMM_K_BLOCKS * SM100_GEMM_SF_ATOM_COLUMNS) /* of 128 rows in a stage */

enum { SM100_GEMM_OPERAND_M, SM100_GEMM_OPERAND_N, SM100_GEMM_OPERAND_UP, SM100_GEMM_OPERANDS };

/* What a kernel is told of its tiles and operands. Tiles are numbered batch by batch; in a batch M runs fastest. */
typedef struct sm100_gemm_params {
    bool tokens_are_mma_m;                     /* else weights are operand M, and tokens operand N */
    bool sf_by_bulk_copy[SM100_GEMM_OPERANDS]; /* scale factors, as whole atoms; else threads arrange them */
    bool one_matrix[SM100_GEMM_OPERANDS];      /* the codes of all batches, or experts: batch 0 of the map */
    uint8_t activation;                        /* an nk_activation_kind, of kernels that activate */
    int32_t mma_m_tiles, mma_n_tiles;          /* of a batch */
    int32_t tiles; /* of all batches; with experts an upper bound, since only the kernel knows */
    int32_t k_steps;
    int32_t up_row_in_atom; /* blocked scale factors: where in an atom the up matrix begins, behind rows of gates */
} sm100_gemm_params;

/* Contiguous grouped GEMM: expert g has tokens offsets[g] .. offsets[g+1], on the device, and the weights of batch g.
 * `token_rows` may say which token each row of the result is made of; offsets then count rows of the result. */
typedef struct sm100_gemm_experts {
    const int32_t *offsets;
    int64_t count;
    int64_t atom_rows; /* that the tokens' blocked scale factors hold; INT64_MAX if nothing needs the clamp */
    nk_token_rows token_rows;
} sm100_gemm_experts;

/* An entry of a CTA's table of experts; one more behind the last holds the totals. */
typedef struct sm100_gemm_expert {
    int32_t first_tile, first_row, first_atom, unused;
} sm100_gemm_expert;
#define SM100_GEMM_EXPERT_BYTES(experts) ((int64_t)sizeof(sm100_gemm_expert) * ((experts) + 1))

#endif
