/* What runs between the GPUs of a group, for nvfp4kern.distributed: no operators, and not part of the C API. */
#ifndef NK_PEER_H
#define NK_PEER_H

#include "nvfp4kern.h"

#define NK_MOST_PEERS 64 /* ranks of a group */

#define NK_MOST_PEER_SELECTIONS 128 /* experts of a token */

/* A group of ranks whose GPUs see each other's memory. All tensors are on this rank's.
 *
 * peers: int32 [ranks + 2, 2], of 64-bit numbers: the addresses of the ranks' arenas, that of a word of the host where
 *        1 + the rank that did not come in time is written (or 0: nowhere), and the time in nanoseconds.
 * arena: uint8 [bytes] of this rank, which began as zeros. All ranks' have the same size.
 *
 * Both are aligned to 16 bytes. */
typedef struct nk_peer_args {
    const nk_tensor *peers, *arena;
    int64_t rank;
} nk_peer_args;

/* out[i] = convert(partial_0[i] + partial_1[i] + ..), in fp32 in the order of the ranks. All ranks call it with the
 * same sizes, dtypes and shots. Floats [n], contiguous and 16-byte aligned, where n is a multiple of 8.
 * shots: 1 or 2, or 0 to choose; see csrc/cuda/peer_reduce.cuh. */
typedef struct nk_peer_reduce_args {
    nk_peer_args group;
    const nk_tensor *partial, *out;
    int64_t shots;
} nk_peer_reduce_args;
nk_status nk_peer_reduce(const nk_peer_reduce_args *args, nk_exec *exec);

/* Tokens to the ranks that have their experts; see csrc/cuda/peer_experts.cuh. Everything is contiguous. Rows of bytes
 * are multiples of 16, and their addresses are aligned to that.
 *
 * tokens: bytes [n, B]. scales: bytes [n, S] or NULL. ids: int32 [n, k], of all experts.
 * out_tokens: [ranks room, B], room >= n. out_scales: [ranks room, S]. out_ids: int32 [ranks room, k]. */
typedef struct nk_peer_dispatch_args {
    nk_peer_args group;
    const nk_tensor *tokens, *scales, *ids;
    int64_t experts; /* of all ranks */
    const nk_tensor *out_tokens, *out_scales, *out_ids;
} nk_peer_dispatch_args;
nk_status nk_peer_dispatch(const nk_peer_dispatch_args *args, nk_exec *exec);

/* The end of a mixture whose tokens came by nk_peer_dispatch.
 *
 * products: [P, H] of floats, of the rank's experts. H is a multiple of 8. row_of: int32 [ranks room k]. ids: int32
 * [n, k] and weights: floats [n, k], of the rank's tokens. residual: [n, H] or NULL. out: [n, H]. */
typedef struct nk_peer_combine_args {
    nk_peer_args group;
    const nk_tensor *products, *row_of, *ids, *weights, *residual;
    int64_t experts;
    const nk_tensor *out;
} nk_peer_combine_args;
nk_status nk_peer_combine(const nk_peer_combine_args *args, nk_exec *exec);

/* ---------------------------------------------------------------------------------------------------------------- */
/* Checked, as a row gets it                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Ranks whose arenas lie at peers[0..world-1]; this rank's is `arena`. Behind these come the address of a word of the
 * host, and a time limit in nanoseconds. */
typedef struct nk_peer_group {
    const int64_t *peers;
    uint8_t *arena;
    int32_t rank, world;
    int64_t arena_bytes;
} nk_peer_group;

/* `all` experts, side by side: each rank has `each`, the first `more` ranks one more. */
typedef struct nk_peer_experts {
    int32_t all, each, more;
} nk_peer_experts;

/* What CTAs of a launch do in turns: `parts` of each of a rank's tokens. From one of its units to the next a CTA goes
 * so many tokens and parts further. The host works that out, since a GPU divides slowly. */
typedef struct nk_peer_units {
    int32_t parts, tokens_on, parts_on;
} nk_peer_units;

/* Elements are a multiple of 8. */
typedef struct nk_peer_reduce_problem {
    nk_device device;
    nk_peer_group group;
    const uint8_t *partial;
    uint8_t *out;
    nk_dtype dtype, out_dtype;
    int64_t elements;
    int32_t shots; /* 1 or 2; 0: whichever is faster */
} nk_peer_reduce_problem;

typedef struct nk_peer_dispatch_problem {
    nk_device device;
    nk_peer_group group;
    const uint8_t *tokens, *scales;
    const int32_t *ids;
    int64_t token_bytes, scale_bytes; /* of a row */
    int64_t sent_bytes;               /* these, and ids, rounded up to 16 */
    int64_t n, room;
    int32_t k;
    nk_peer_experts experts;
    nk_peer_units units; /* the launch's */
    uint8_t *out_tokens, *out_scales;
    int32_t *out_ids;
} nk_peer_dispatch_problem;

typedef struct nk_peer_combine_problem {
    nk_device device;
    nk_peer_group group;
    const uint8_t *products, *residual; /* residual: or NULL */
    const int32_t *row_of, *ids;
    const uint8_t *weights;
    uint8_t *out;
    nk_dtype dtype, weight_dtype, residual_dtype, out_dtype;
    int32_t weight_size, residual_size, out_size; /* of an element */
    int64_t rows;                    /* of products */
    int64_t n, room, h;
    int32_t k;
    nk_peer_experts experts;
    nk_peer_units units; /* the launch's */
} nk_peer_combine_problem;

/* What a row does between GPUs. */
struct nk_peer_row {
    nk_status (*reduce)(const nk_peer_reduce_problem *problem, const nk_exec *exec);
    nk_status (*dispatch)(const nk_peer_dispatch_problem *problem, const nk_exec *exec);
    nk_status (*combine)(const nk_peer_combine_problem *problem, const nk_exec *exec);
};

#endif
