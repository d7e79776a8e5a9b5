/* Tiles of the sm90 GEMM family, its parameters and the sizes of its shared memory, for host and device. */
#ifndef NK_SM90_GEMM_CONFIG_H
#define NK_SM90_GEMM_CONFIG_H

#include "cuda/cuda_tensor_map.h"
#include "nk_format.h"
#include "nk_problem.h"

#include <stdbool.h>

#define SM90_GEMM_STEP 128 /* elements of K in a step: a row's 64 bytes of codes, eight scale factors */
#define SM90_GEMM_CODE_BYTES (SM90_GEMM_STEP / 2)
#define SM90_GEMM_SF_BYTES (NK_SF_ATOM_ROWS * SM90_GEMM_STEP / NK_SF_VEC) /* of a step: two atoms of 128 rows */
#define SM90_GEMM_SWIZZLE_K 64 /* elements of K in a 128-byte row of tokens, which tensor maps swizzle */

/* X(name, tile_m, tile_n, consumer groups, cluster, stages, steps of a K tile, early weight stages)
 *
 *   tile_m, tile_n   tokens and weight rows: the M and the N of the GEMM
 *   consumer groups  each of tile_n / 64 warpgroups, takes stages of its own
 *   cluster          CTAs; each has an equal range of K, so this is split-K over the cluster
 *   steps            a stage holds one K tile: tile_k = 128 * steps
 *   early            stages whose weights are loaded before the previous kernel has ended (PDL)
 *
 * Two consumer groups take a CTA's K tiles in turn: split-K within the CTA. Tiles of 192 rows (s, u) are for sizes at
 * which tiles of 128 rows leave the last wave half empty; those of 256 have more warps that decode. Names: t and s
 * split K; w has 128 rows, v 256, s and u 192; n has 128 and takes tokens in their natural order of K.
 *
 * A tile of experts multiplies as many tokens as it has, rounded up to SM90_GEMM_TILE_M_STEP. */

/* Split-K, within the CTA (t16 .. t64) and over the cluster: a CTA, or a cluster, for each tile. */
#define SM90_GEMM_SPLIT_K_TILES(X)   \
    X(t16, 16, 128, 2, 2, 8, 2, 4)   \
    X(t32, 32, 128, 2, 2, 6, 2, 3)   \
    X(t64, 64, 128, 2, 2, 8, 1, 4)   \
    X(t96, 96, 128, 1, 2, 5, 1, 4)   \
    X(t128, 128, 128, 1, 2, 4, 1, 4) \
    X(s128, 128, 192, 1, 2, 3, 1, 3)
/* Tiles without split-K have a static tile scheduler: CTAs are persistent. These are experts', too. */
#define SM90_GEMM_COMMON_TILES(X)    \
    X(v8, 8, 256, 1, 1, 4, 2, 3)     \
    X(v16, 16, 256, 1, 1, 4, 2, 3)   \
    X(v32, 32, 256, 1, 1, 4, 2, 3)   \
    X(w8, 8, 128, 1, 1, 9, 2, 4)     \
    X(w64, 64, 128, 1, 1, 8, 1, 4)   \
    X(w128, 128, 128, 1, 1, 5, 1, 5) \
    X(w256, 256, 128, 1, 1, 3, 1, 3)
#define SM90_GEMM_PERSISTENT_TILES(X) \
    SM90_GEMM_COMMON_TILES(X)         \
    X(w32, 32, 128, 1, 1, 6, 2, 3)    \
    X(w96, 96, 128, 1, 1, 6, 1, 4)    \
    X(u96, 96, 192, 1, 1, 5, 1, 4)    \
    X(u128, 128, 192, 1, 1, 4, 1, 4)
#define SM90_GEMM_LARGE_EXPERT_TILES(X) \
    X(v96, 96, 256, 1, 1, 4, 1, 4)      \
    X(v112, 112, 256, 1, 1, 4, 1, 4)
/* Of 16-bit tokens in their own order of K, which need no prologue kernel: idle producer warps rearrange codes. */
#define SM90_GEMM_NATURAL_K_TILES(X) X(n256, 256, 128, 1, 1, 3, 1, 3)
/* Most experts have one tile, full or nearly so. */
#define SM90_GEMM_EXPERT_TILES(X) SM90_GEMM_COMMON_TILES(X) SM90_GEMM_LARGE_EXPERT_TILES(X)
#define SM90_GEMM_ONE_GEMM_TILES(X) SM90_GEMM_SPLIT_K_TILES(X) SM90_GEMM_PERSISTENT_TILES(X)
#define SM90_GEMM_TILES(X) SM90_GEMM_ONE_GEMM_TILES(X) SM90_GEMM_LARGE_EXPERT_TILES(X) SM90_GEMM_NATURAL_K_TILES(X)

enum {
#define SM90_GEMM_INDEX(name, ...) SM90_GEMM_##name,
    SM90_GEMM_TILES(SM90_GEMM_INDEX)
#undef SM90_GEMM_INDEX
        SM90_GEMM_TILE_COUNT
};

#define SM90_GEMM_MAX_TILE_M 256

/* Tokens by which tiles of experts are as high as they must be: the N of an MMA. A kernel has a product and a tensor
 * map for each height. */
#define SM90_GEMM_TILE_M_STEP(tile_m) ((tile_m) > 128 ? 32 : (tile_m) > 32 ? 16 : 8)
#define SM90_GEMM_MOST_TILE_M_STEPS 8

/* The producers are two warps, or a whole warpgroup if the consumers need its registers (setmaxnreg), if two warps
 * copy, or if two rearrange codes. */
#define SM90_GEMM_HAS_PRODUCER_WARPGROUP(tile_m, tile_n, natural_k) ((tile_m) >= 256 || (tile_n) > 128 || (natural_k))
/* A warpgroup's 128 threads for each 64 rows, and the producers'. */
#define SM90_GEMM_THREADS(tile_m, tile_n, consumer_groups, natural_k) \
    (2 * (tile_n) * (consumer_groups) + (SM90_GEMM_HAS_PRODUCER_WARPGROUP(tile_m, tile_n, natural_k) ? 128 : 64))

/* Atoms of blocked scale factors that a stage has along N, for each 64 elements of K. 192 rows of a matrix, or 96 of
 * each of two, lie in at most two atoms of it. 64 rows of each of two matrices take the room of one. */
#define SM90_GEMM_SF_ATOMS_N(tile_n, matrices) ((tile_n) == 192 ? 2 * (matrices) : (tile_n) / NK_SF_ATOM_ROWS)

/* Linear scale factors come as boxes of 16 bytes of each row, if an operand has such boxes: those of a stage, or those
 * of two stages if a stage is one step. */
#define SM90_GEMM_SF_BOX_BYTES 16
#define SM90_GEMM_HAS_SF_BOXES(tile_n) ((tile_n) == 256)
#define SM90_GEMM_STAGE_SF_BYTES(tile_n, steps, matrices)               \
    (SM90_GEMM_HAS_SF_BOXES(tile_n) ? (tile_n) * SM90_GEMM_SF_BOX_BYTES \
                                    : (steps) * SM90_GEMM_SF_ATOMS_N(tile_n, matrices) * SM90_GEMM_SF_BYTES)

/* struct sm90_gemm_memory of sm90_gemm_tile.cuh, which sm90_gemm.cuh compares with this. The last 1024 bytes have the
 * barriers and, of experts, struct expert_scan and the encoder's scale factors. */
#define SM90_GEMM_STAGE_BYTES(tile_m, tile_n, steps, matrices)                     \
    ((steps) * ((tile_n) * SM90_GEMM_CODE_BYTES + 2 * SM90_GEMM_STEP * (tile_m)) + \
     SM90_GEMM_STAGE_SF_BYTES(tile_n, steps, matrices))
#define SM90_GEMM_PARTIAL_SUM_BYTES(tile_m, tile_n, cluster) ((cluster) == 2 ? 2 * (tile_n) * (tile_m) : 0)
#define SM90_GEMM_BARRIER_BYTES(stages) ((2 * (stages) + 2) * 8)
#define SM90_GEMM_SMEM(tile_m, tile_n, cluster, stages, steps, matrices) \
    ((stages) * SM90_GEMM_STAGE_BYTES(tile_m, tile_n, steps, matrices) + \
     SM90_GEMM_PARTIAL_SUM_BYTES(tile_m, tile_n, cluster) + 1024 * ((SM90_GEMM_BARRIER_BYTES(stages) + 1023) / 1024))
/* Of experts a list of a CTA's first tiles follows, and one of the experts. */
#define SM90_GEMM_LISTED_TILES 64
#define SM90_GEMM_TILE_LIST_BYTES (16 * SM90_GEMM_LISTED_TILES)
#define SM90_GEMM_EXPERT_BYTES(experts) (8 * ((experts) + 1))

/* What is the same for all tiles of a GEMM. */
typedef struct sm90_gemm_params {
    int32_t n_tiles, m_tiles; /* of a batch: along the weight rows, along the tokens */
    int32_t tiles;            /* of all batches; of experts the kernel counts them, and m_tiles, itself */
    int32_t k_steps;
    int32_t k_tiles_per_cta; /* less for the last CTA of a cluster if they do not divide evenly */
    float mma_scale;         /* times an accumulator, the sum of products: 2^14 for each decoded operand */
    bool one_matrix;         /* all batches, or experts, have the same weights */
    int32_t sf_alignment;    /* that address and strides of linear scale factors have: 4, 8 or 16 bytes */
    bool has_sf_boxes;       /* linear scale factors come by tensor maps: experts' */
    bool weights_first;      /* without a prologue kernel: weights are loaded before the previous kernels have ended */
    uint8_t activation;      /* an nk_activation_kind, of kernels that activate */
} sm90_gemm_params;

/* Tensor maps of experts' weights: the linear scale factors of each matrix, and tokens in boxes of each height,
 * SM90_GEMM_TILE_M_STEP apart. */
typedef struct sm90_expert_maps {
    cuda_tensor_map sf[2], tokens[SM90_GEMM_MOST_TILE_M_STEPS];
} sm90_expert_maps;

/* Contiguous grouped GEMM: expert g has tokens offsets[g] .. offsets[g+1] - 1, read on the device, and batch g of the
 * weights. Its tiles have no split-K. A launch multiplies all rows of the experts, or a slice of them: its problem is
 * the slice, while offsets, and blocked scale factors of tokens that are not gathered, are those of all rows. */
typedef struct sm90_gemm_experts {
    const int32_t *offsets; /* NULL: no experts */
    int64_t count;
    int64_t token_sf_bytes;    /* of the buffer of blocked scale factors */
    int64_t rows;              /* of all slices */
    int32_t first_row;         /* of this one */
    bool wait_first;           /* reads no offset before the previous kernels have ended */
    nk_token_rows token_rows;  /* of the operand, if they are gathered */
    nk_encoded_output encoded; /* of grouped_gemm */
} sm90_gemm_experts;

/* Prepared tokens, as the prologue kernel (sm90_prepare_a_*) writes them to the workspace: [L][M][K rounded up to whole
 * steps] of 16 bits, K in the order in which weights are decoded, then spare rows of zeros. Those of a list, and rows
 * of no expert, hold whatever memory held: a row is one column of the MMA, so that reaches no output. */
typedef struct sm90_prepared_a {
    uint8_t *data;
    int64_t rows_with_spare; /* of lists unused */
    int32_t k_steps;         /* of a row */
    bool release_first;      /* lets the GEMM start before the prologue kernel itself waits */
} sm90_prepared_a;

#define SM90_PREPARE_A_THREADS 256 /* of the prologue kernel, at most; each writes 16 bytes of each row */
#define SM90_PREPARE_A_ROWS 4      /* of a CTA of the kernels for many rows */

#endif
