/* What runs between the GPUs of a group, for nvfp4kern.distributed: no operators, and not part of the C API. */
#ifndef NK_PEER_H
#define NK_PEER_H

#include "nvfp4kern.h"

#define NK_MOST_PEERS 64 /* ranks of a group */

/* A group of ranks whose GPUs see each other's memory. All tensors are on this rank's.
 *
 * peers: int32 [ranks + 2, 2], of 64-bit numbers: the addresses of the ranks' arenas, that of a word of the host where
 *        1 + the rank that did not come in time is written (or 0: nowhere), and the time in nanoseconds.
 * arena: uint8 [bytes] of this rank, which began as zeros. All ranks' have the same size. */
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

/* ---------------------------------------------------------------------------------------------------------------- */
/* Checked, as a row gets it                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Ranks whose arenas lie at peers[0..world-1]. Behind these come the address of a word of the host, and a time limit in
 * nanoseconds. */
typedef struct nk_peer_group {
    const int64_t *peers;
    int32_t rank, world;
    int64_t arena_bytes;
} nk_peer_group;

/* Elements are a multiple of 8. */
typedef struct nk_peer_reduce_problem nk_peer_reduce_problem;
struct nk_peer_reduce_problem {
    nk_device device;
    nk_peer_group group;
    const uint8_t *partial;
    uint8_t *out;
    nk_dtype dtype, out_dtype;
    int64_t elements;
    int32_t shots; /* 1 or 2; 0: whichever is faster */
};

#endif
