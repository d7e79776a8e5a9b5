/* What this row does between GPUs. */
#include "cuda/cuda_peer.h"
#include "sm80/sm80_backend.h"

#define OF_DTYPES(kernel) {&kernel##_fp16, &kernel##_bf16, &kernel##_fp32}

nk_status sm80_peer_reduce(const nk_peer_reduce_problem *p, const nk_exec *exec)
{
    static const cuda_peer_reduce_kernels kernels = {OF_DTYPES(sm80_peer_one_shot), OF_DTYPES(sm80_peer_two_shot)};
    return cuda_peer_reduce(p, &kernels, exec);
}
