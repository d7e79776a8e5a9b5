/* Between the GPUs of a group: sums, and tokens to experts and back, by stores to the others' memory. The kernels are
 * those of cuda/peer_reduce.cuh, cuda/peer_dispatch.cuh and cuda/peer_combine.cuh. */
#include "cuda/peer_combine.cuh"
#include "cuda/peer_dispatch.cuh"
#include "cuda/peer_reduce.cuh"

PEER_REDUCE_KERNEL(sm80_peer_one_shot_fp16, one_shot, NK_F16)
PEER_REDUCE_KERNEL(sm80_peer_one_shot_bf16, one_shot, NK_BF16)
PEER_REDUCE_KERNEL(sm80_peer_one_shot_fp32, one_shot, NK_F32)
PEER_REDUCE_KERNEL(sm80_peer_two_shot_fp16, two_shot, NK_F16)
PEER_REDUCE_KERNEL(sm80_peer_two_shot_bf16, two_shot, NK_BF16)
PEER_REDUCE_KERNEL(sm80_peer_two_shot_fp32, two_shot, NK_F32)

PEER_DISPATCH_KERNEL(sm80_peer_dispatch)
PEER_COMBINE_KERNEL(sm80_peer_combine_fp16, NK_F16)
PEER_COMBINE_KERNEL(sm80_peer_combine_bf16, NK_BF16)
PEER_COMBINE_KERNEL(sm80_peer_combine_fp32, NK_F32)
