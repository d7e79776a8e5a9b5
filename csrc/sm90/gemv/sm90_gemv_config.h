/* Sizes and parameters of the kernels for few tokens, for host and device. */
#ifndef NK_SM90_GEMV_CONFIG_H
#define NK_SM90_GEMV_CONFIG_H

#include "cuda/cuda_tensor_map.h"
#include "nk_format.h"
#include "nk_problem.h"

#define SM90_GEMV_WARPS 16 /* of an SM: one CTA has all, or two CTAs have 8 each */
#define SM90_GEMV_CHUNK 32 /* elements: 16 bytes of codes, two scale factors */
#define SM90_GEMV_STEP 256 /* elements of K in a step: two chunks for each of four lanes */
#define SM90_GEMV_CHUNKS (SM90_GEMV_STEP / SM90_GEMV_CHUNK)
#define SM90_GEMV_WORDS (SM90_GEMV_STEP / 8) /* of a row in a step */
#define SM90_GEMV_M8 8                       /* rows of W, which is the MMA's M */
#define SM90_GEMV_PIPELINE_M8S 6             /* of a warp: three stages of 16 rows (TALL), or six of 8 (SHORT) */
#define SM90_GEMV_MAX_TOKENS 8               /* N of the MMA */
#define SM90_GEMV_TOKEN_STEP_BYTES (SM90_GEMV_STEP * 2) /* a step of a token in 16 bits */
#define SM90_GEMV_WARPGROUP_WARPS 4
#define SM90_GEMV_MAX_CLUSTER 8                                       /* CTAs: split-K over a cluster */
#define SM90_GEMV_MAX_ROWS 512                                        /* of a CTA */
#define SM90_GEMV_MAX_TILES (SM90_GEMV_MAX_ROWS / (2 * SM90_GEMV_M8)) /* of a CTA, whose consumers are single warps */

/* Scheduler parameters: stream-K within a CTA, split-K over a cluster.
 *
 * A cluster takes `rows` consecutive positions, and each of its CTAs `k_steps` K steps of them. A CTA's steps, tile by
 * tile, are divided evenly among its consumers: each takes steps_per_consumer of them in turn, so it may begin in the
 * middle of a tile. A consumer is one warp (mma), or a warpgroup (wgmma). The sums of a tile are thus split twice:
 * among the consumers of a CTA, and among the CTAs of a cluster. */
typedef struct sm90_gemv_scheduler {
    int32_t rows;
    int32_t n, all_positions, all_words;          /* of the matrix: rows, positions, words of a row */
    int32_t atoms_bytes;                          /* of a row of atoms, if scale factors are blocked */
    int32_t steps_per_consumer;                   /* the same in CTAs with fewer rows */
    int32_t split_k;                              /* within the CTA: most consumers that have steps of one tile */
    int32_t cluster;                              /* CTAs, over which K is split, too */
    int32_t epilogue_rows, epilogue_rows_inverse; /* rows whose epilogue each CTA runs; the last may have fewer */
    uint16_t k_steps, all_k_steps;                /* of a CTA, of the matrix */
    uint16_t tokens;
    uint16_t early; /* weights may be read before the kernels before this one have ended */
} sm90_gemv_scheduler;

/* The step at which a consumer begins, and how many consumers begin its tile before it. The host computes it, since
 * that takes divisions. Packed: the K step in the low bits, then the tile, then the consumers. */
enum { SM90_GEMV_K_STEP_BITS = 15, SM90_GEMV_TILE_BITS = 6 };

NK_HD uint32_t sm90_gemv_start(int32_t k_step, int32_t tile, int32_t consumers_before)
{
    return (uint32_t)((consumers_before << SM90_GEMV_TILE_BITS | tile) << SM90_GEMV_K_STEP_BITS | k_step);
}
NK_HD int32_t sm90_gemv_start_k_step(uint32_t start) { return (int32_t)start & ((1 << SM90_GEMV_K_STEP_BITS) - 1); }
NK_HD int32_t sm90_gemv_start_tile(uint32_t start)
{
    return (int32_t)(start >> SM90_GEMV_K_STEP_BITS) & ((1 << SM90_GEMV_TILE_BITS) - 1);
}
NK_HD int32_t sm90_gemv_consumers_before(uint32_t start)
{
    return (int32_t)(start >> (SM90_GEMV_K_STEP_BITS + SM90_GEMV_TILE_BITS));
}

/* A second matrix, of the same sizes: the ups of sm90_gemv.cu's formula. The two matrices alternate every 8 rows, so a
 * tile has 8 rows of each, and positions count the rows of both. */
typedef struct sm90_gemv_dual {
    nk_operand b;
    nk_alpha alpha;
    nk_bias bias;
    nk_activation activation;
    int32_t first_sf_row; /* of blocked scale factors: where b begins in their first atom */
} sm90_gemv_dual;

/* The parameters of a kernel. An SM fetches them when they are read, in lines of 64 bytes, 70 ns each. So what is
 * needed together lies together, and each operand has a line of its own, but in lists. The first byte lies 16 bytes
 * behind the start of a line. */
typedef struct sm90_gemv_args {
    sm90_gemv_scheduler scheduler;
    nk_operand b, a;
    nk_output d;
    nk_alpha alpha;
    nk_bias bias;
    nk_row_scale row_scale;
    uint32_t starts[SM90_GEMV_WARPS][2]; /* of consumers; [1]: in a CTA with fewer K steps, or none */
    sm90_gemv_dual dual;                 /* DUAL */
} sm90_gemv_args;

/* Experts: batch l of the grid is row l of D, whose rows are sorted by expert. W has a batch for each expert.
 * nk_grouped_gemm_problem says which expert and which token a row has. */
typedef struct sm90_gemv_experts {
    const int32_t *offsets;
    int32_t experts;
    nk_token_rows rows;
    nk_encoded_output encoded; /* DUAL: if wanted, in place of D */
} sm90_gemv_experts;

/* A list of groups with few tokens: batch l of the grid is group l. All have the same N and K, so they share a
 * schedule; strides between batches are 0. The parameters are 18 KB: a launch may have 32,764 bytes, but all of them
 * travel with it. */
#define SM90_GEMV_LIST_GROUPS 32

typedef struct sm90_gemv_list {
    sm90_gemv_args group[SM90_GEMV_LIST_GROUPS];
} sm90_gemv_list;

/* Tensor maps of W, by dimensions.
 * Blocked   codes: bytes of K, rows of a quad, quads, atoms, batches
 *           scale factors: bytes of an atom, atoms of a row of atoms, rows of atoms, batches
 * Linear    codes: bytes of K, rows, 1, 1, batches
 *           scale factors: bytes of K, rows, 1, batches */
typedef struct sm90_gemv_maps {
    cuda_tensor_map codes, sf;
} sm90_gemv_maps;

NK_HD int64_t sm90_gemv_k_steps(int64_t k) { return nk_ceil_div(k, SM90_GEMV_STEP); }

/* How many positions rows have. A position is a row's number in the order of the scheduler. Linear: the row itself.
 * Blocked: row quad by row quad, as atoms hold them (sf_row_of_position). A full atom has 32 quads; the last may have
 * fewer, and its quads fewer rows. */
NK_HD int64_t sm90_gemv_positions(int64_t rows, int blocked)
{
    const int64_t quads = NK_SF_ATOM_ROWS / 4, rest = rows % NK_SF_ATOM_ROWS;
    return blocked ? rows - rest + 4 * (rest < quads ? rest : quads) : rows;
}

/* How many of `consumers` have steps of one tile, at most; a tile has `k_steps` steps. */
NK_HD int32_t sm90_gemv_consumers_of_tile(int32_t k_steps, int32_t steps_per_consumer, int32_t consumers)
{
    int32_t most = k_steps % steps_per_consumer == 0   ? k_steps / steps_per_consumer
                   : steps_per_consumer % k_steps == 0 ? 1
                                                       : (k_steps + steps_per_consumer - 2) / steps_per_consumer + 1;
    return most < consumers ? most : consumers;
}

/* position / rows by a multiplication: exact for both up to SM90_GEMV_MAX_ROWS. */
#define SM90_GEMV_INVERSE_BITS 20
NK_HD int32_t sm90_gemv_inverse(int32_t rows) { return (1 << SM90_GEMV_INVERSE_BITS) / rows + 1; }
NK_HD int32_t sm90_gemv_divide(int32_t position, int32_t inverse)
{
    return position * inverse >> SM90_GEMV_INVERSE_BITS;
}

#endif
