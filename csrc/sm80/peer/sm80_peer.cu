/* Sums over the ranks of a group by stores to their memory. The kernels are those of cuda/peer_reduce.cuh. */
#include "cuda/peer_reduce.cuh"

PEER_REDUCE_KERNEL(sm80_peer_one_shot_fp16, one_shot, NK_F16)
PEER_REDUCE_KERNEL(sm80_peer_one_shot_bf16, one_shot, NK_BF16)
PEER_REDUCE_KERNEL(sm80_peer_one_shot_fp32, one_shot, NK_F32)
PEER_REDUCE_KERNEL(sm80_peer_two_shot_fp16, two_shot, NK_F16)
PEER_REDUCE_KERNEL(sm80_peer_two_shot_bf16, two_shot, NK_BF16)
PEER_REDUCE_KERNEL(sm80_peer_two_shot_fp32, two_shot, NK_F32)
