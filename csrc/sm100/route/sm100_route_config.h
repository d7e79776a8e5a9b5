/* The tiles of Blackwell's router, its launch parameters and the sizes of its memory, for host and device. */
#ifndef NK_SM100_ROUTE_CONFIG_H
#define NK_SM100_ROUTE_CONFIG_H

#include "cuda/cuda_route.h"
#include "nk_format.h"
#include "nk_problem.h"

#include <stdbool.h>

#define SM100_ROUTE_MMA_M 128 /* rows of operand M: lanes of tensor memory */
#define SM100_ROUTE_TILE_K 64 /* of a stage, one step of K: 128 bytes of a row, the swizzle's span */
#define SM100_ROUTE_ROW_BYTES (2 * SM100_ROUTE_TILE_K)
#define SM100_ROUTE_MAX_MMA_N 256
#define SM100_ROUTE_MAX_CLUSTER 8 /* CTAs, on every such GPU */

/* X(name, TOKENS, TOKENS_ARE_MMA_M): tokens of a tile. They are operand N, columns of tensor memory, and each CTA has
 * 128 experts as operand M; or they are operand M, and operand N has all experts. NVFP4KERN_BATCH_INVARIANT takes the
 * first tile. */
#define SM100_ROUTE_TILES(X) \
    X(c64, 64, false)        \
    X(c16, 16, false)        \
    X(c32, 32, false)        \
    X(c128, 128, false)      \
    X(c256, 256, false)      \
    X(l128, 128, true)

enum {
#define SM100_ROUTE_INDEX(name, ...) SM100_ROUTE_##name,
    SM100_ROUTE_TILES(SM100_ROUTE_INDEX)
#undef SM100_ROUTE_INDEX
        SM100_ROUTE_TILE_COUNT
};

/* Epilogue warp w reads lanes 32 w .. + 31 of tensor memory. All warps route tokens. */
#define SM100_ROUTE_EPILOGUE_WARPS 4
#define SM100_ROUTE_PRODUCER_WARP SM100_ROUTE_EPILOGUE_WARPS
#define SM100_ROUTE_MMA_WARP (SM100_ROUTE_PRODUCER_WARP + 1)
#define SM100_ROUTE_WARPS 16
#define SM100_ROUTE_THREADS (32 * SM100_ROUTE_WARPS)

/* A thread that routes the token of its lane. */
#define SM100_ROUTE_THREAD_MAX_TOP_K 8
#define SM100_ROUTE_THREAD_MAX_GROUPS 32 /* of experts: a thread keeps a bit for each */
#define SM100_ROUTE_THREAD_WORDS \
    (SM100_ROUTE_THREAD_MAX_GROUPS + 4) /* scores of groups, later keys: spread over banks */
#define SM100_ROUTE_THREAD_BYTES (4 * SM100_ROUTE_THREAD_WORDS * SM100_ROUTE_MMA_M)

/* Shared memory: the pipeline, [stages] of a step's rows of operands M and N. Later the same bytes hold the CTA's sums,
 * [tokens][pitch], and behind them the warps' scratch, or the words of each thread. Behind both are the barriers. */
#define SM100_ROUTE_STAGE_BYTES(mma_n) ((SM100_ROUTE_MMA_M + (mma_n)) * SM100_ROUTE_ROW_BYTES)
#define SM100_ROUTE_MAX_STAGES 12
#define SM100_ROUTE_PITCH(experts) ((experts) + 4) /* lanes that store four experts each of a row hit all banks */
#define SM100_ROUTE_BARRIER_BYTES (16 * SM100_ROUTE_MAX_STAGES + 16)

/* The parameters of a launch. A cluster has a tile of tokens; its CTA `split * expert_tiles + tile` multiplies a tile
 * of experts over a share of K. */
typedef struct sm100_route_params {
    bool tokens_are_mma_m;
    bool by_thread;        /* a thread routes the token of its lane; else warps route tokens */
    int32_t tokens;        /* of a tile */
    int32_t experts;       /* of a CTA: 128 as operand M, or all as operand N, rounded up to 16 */
    int32_t expert_tiles;  /* of a cluster */
    int32_t split_k;       /* over the cluster */
    int32_t steps, stages; /* of K; of the pipeline */
    int32_t early;         /* stages whose weights are loaded while the kernels before this one run */
    int32_t scratch_at, scratch_experts, barriers_at; /* in shared memory; experts that a warp's scratch has room for */
    int32_t tmem_columns;                             /* allocated: a power of two from 32 on */
    uint32_t instruction;                             /* descriptor (PTX ISA, 9.7.16.4.2) */
} sm100_route_params;

NK_HD int32_t sm100_route_mma_n(const sm100_route_params *params)
{
    return params->tokens_are_mma_m ? params->experts : params->tokens;
}

#endif
