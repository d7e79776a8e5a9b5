/* Shared memory of the kernels for few tokens, for host and device.
 *
 * In this order: the head; the pipelines of weights; the tokens, as much of K as the CTA has; partial sums. What has a
 * fixed size is a struct. What depends on a problem's sizes is a function. */
#ifndef NK_SM90_GEMV_MEMORY_H
#define NK_SM90_GEMV_MEMORY_H

#include "sm90_gemv_config.h"

#include <stdbool.h>

/* Each mbarrier completes one phase, parity 0. The kernels say who arrives. Stages follow, at the start of a line. */
typedef struct sm90_gemv_head {
    uint8_t zeros[64];                                /* read by lanes whose values are zero */
    uint32_t largest, largest_complement, padding[2]; /* begin as zeros, see fp16_conversion_of_token() */
    uint64_t inbox_full;
    uint64_t token_full[SM90_GEMV_MAX_TOKENS];
    uint32_t parameter_touch; /* see prepare_epilogue(); nothing reads it */
    int32_t expert, token;    /* see find_expert_of_cta() */
} __attribute__((aligned(128))) sm90_gemv_head;

/* Eight rows of a step of W. A stage of a warp's pipeline has one or two. m8_chunk_at() says where a chunk of a row
 * lies. */
typedef struct sm90_gemv_m8_stage {
    uint8_t codes[SM90_GEMV_M8][SM90_GEMV_STEP / 2];
    uint8_t sf[SM90_GEMV_M8][SM90_GEMV_STEP / NK_SF_VEC];
} sm90_gemv_m8_stage;

#define SM90_GEMV_PIPELINE_BYTES ((int32_t)(SM90_GEMV_PIPELINE_M8S * sizeof(sm90_gemv_m8_stage))) /* of a warp */

/* By tensor map: pipelines [warpgroup][stage], behind a head of their own. */
enum {
    SM90_GEMV_MAP_ROWS = 2 * SM90_GEMV_WARPGROUP_WARPS * SM90_GEMV_M8,
    /* of a stage: M of a wgmma */ /* of a stage: M of a wgmma */
        SM90_GEMV_MAP_STAGES = SM90_GEMV_PIPELINE_M8S / 2,
    SM90_GEMV_MAX_WARPGROUPS = SM90_GEMV_WARPS / SM90_GEMV_WARPGROUP_WARPS
};

/* The swizzle has a period of 1024 bytes. */
typedef struct sm90_gemv_map_stage {
    uint8_t codes[SM90_GEMV_MAP_ROWS][SM90_GEMV_STEP / 2];
    uint8_t sf[SM90_GEMV_MAP_ROWS * SM90_GEMV_STEP / NK_SF_VEC]; /* [row][word of 4], or, blocked, [word][row] */
} __attribute__((aligned(1024))) sm90_gemv_map_stage;

typedef struct sm90_gemv_map_head {
    sm90_gemv_head head;
    uint64_t full[SM90_GEMV_MAX_WARPGROUPS][SM90_GEMV_MAP_STAGES];
} __attribute__((aligned(1024))) sm90_gemv_map_head;

/* A K step of one NVFP4 token: B of a wgmma for each of a lane's two chunks and each of a block's two words. */
typedef struct sm90_gemv_b_operand {
    uint8_t half[2][8][16]; /* [of K][column] */
} sm90_gemv_b_operand;

typedef struct sm90_gemv_token_step {
    sm90_gemv_b_operand b[2][2];
} sm90_gemv_token_step;

/* Tokens begin here, behind the pipelines. */
NK_HD int32_t sm90_gemv_tokens_at(bool by_tensor_map, int32_t warps)
{
    return (int32_t)(by_tensor_map ? sizeof(sm90_gemv_map_head) : sizeof(sm90_gemv_head)) +
           warps * SM90_GEMV_PIPELINE_BYTES;
}

/* Bytes from one token in 16 bits to the next. Half a line more than the token takes: this keeps lanes of two tokens
 * off each other's banks. */
NK_HD int64_t sm90_gemv_token_bytes(int64_t k_steps) { return k_steps * SM90_GEMV_TOKEN_STEP_BYTES + 64; }

/* One NVFP4 token: all its K steps, then their scale factors in fp16. */
#define SM90_GEMV_TOKEN_STEP_SF_BYTES (SM90_GEMV_STEP / NK_SF_VEC * 2)
NK_HD int32_t sm90_gemv_e4m3_token_bytes(int32_t k_steps)
{
    return k_steps * (int32_t)(sizeof(sm90_gemv_token_step) + SM90_GEMV_TOKEN_STEP_SF_BYTES);
}

/* How many sums there are, behind the tokens: partial sums [split within the CTA][row][token] and, if a cluster splits
 * K, an inbox [CTA][row of this CTA's epilogue][token]. By tensor map there is only an inbox, [row][CTA][split]. */
NK_HD int32_t sm90_gemv_sum_count(bool by_tensor_map, const sm90_gemv_scheduler *w)
{
    const int32_t inbox = w->epilogue_rows * w->cluster;
    if (by_tensor_map) return inbox * w->split_k;
    return (w->split_k * w->rows + (w->cluster > 1 ? inbox : 0)) * w->tokens;
}

#endif
