/* Launches between the GPUs of a group, given a row's kernels. */
#ifndef NK_CUDA_PEER_H
#define NK_CUDA_PEER_H

#include "backend.h"
#include "nk_peer.h"
#include "cuda_launch.h"

/* [dtype of the partial sums] */
typedef struct cuda_peer_reduce_kernels {
    cuda_kernel *one_shot[3], *two_shot[3];
} cuda_peer_reduce_kernels;

nk_status cuda_peer_reduce(const nk_peer_reduce_problem *p, const cuda_peer_reduce_kernels *kernels,
                           const nk_exec *exec);

nk_status cuda_peer_dispatch(const nk_peer_dispatch_problem *p, cuda_kernel *kernel, const nk_exec *exec);

/* kernels: [dtype of the products] */
nk_status cuda_peer_combine(const nk_peer_combine_problem *p, cuda_kernel *const kernels[3], const nk_exec *exec);

#endif
