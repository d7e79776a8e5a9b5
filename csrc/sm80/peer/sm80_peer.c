/* What this row does between GPUs. */
#include "cuda/cuda_peer.h"
#include "sm80/sm80_backend.h"

#define OF_DTYPES(kernel) {&kernel##_fp16, &kernel##_bf16, &kernel##_fp32}

static nk_status launch_reduce(const nk_peer_reduce_problem *p, const nk_exec *exec)
{
    static const cuda_peer_reduce_kernels kernels = {OF_DTYPES(sm80_peer_one_shot), OF_DTYPES(sm80_peer_two_shot)};
    return cuda_peer_reduce(p, &kernels, exec);
}

static nk_status launch_dispatch(const nk_peer_dispatch_problem *p, const nk_exec *exec)
{
    return cuda_peer_dispatch(p, &sm80_peer_dispatch, exec);
}

static nk_status launch_combine(const nk_peer_combine_problem *p, const nk_exec *exec)
{
    static cuda_kernel *const kernels[] = OF_DTYPES(sm80_peer_combine);
    return cuda_peer_combine(p, kernels, exec);
}

const nk_peer_row sm80_peers = {launch_reduce, launch_dispatch, launch_combine};
