/* Between the GPUs of a group: sums, and tokens to experts and back, by stores to the others' memory. The kernels are
 * those of cuda/peer_reduce.cuh and cuda/peer_experts.cuh. */
#include "cuda/peer_experts.cuh"
#include "cuda/peer_reduce.cuh"

PEER_REDUCE_KERNEL(sm80_peer_one_shot_fp16, one_shot, NK_F16)
PEER_REDUCE_KERNEL(sm80_peer_one_shot_bf16, one_shot, NK_BF16)
PEER_REDUCE_KERNEL(sm80_peer_one_shot_fp32, one_shot, NK_F32)
PEER_REDUCE_KERNEL(sm80_peer_two_shot_fp16, two_shot, NK_F16)
PEER_REDUCE_KERNEL(sm80_peer_two_shot_bf16, two_shot, NK_BF16)
PEER_REDUCE_KERNEL(sm80_peer_two_shot_fp32, two_shot, NK_F32)

PEER_DISPATCH_KERNEL(sm80_peer_dispatch_plain, false)
PEER_DISPATCH_KERNEL(sm80_peer_dispatch_records, true)
PEER_COMBINE_KERNEL(sm80_peer_combine_plain_fp16, NK_F16, false)
PEER_COMBINE_KERNEL(sm80_peer_combine_plain_bf16, NK_BF16, false)
PEER_COMBINE_KERNEL(sm80_peer_combine_plain_fp32, NK_F32, false)
PEER_COMBINE_KERNEL(sm80_peer_combine_records_fp16, NK_F16, true)
PEER_COMBINE_KERNEL(sm80_peer_combine_records_bf16, NK_BF16, true)
PEER_COMBINE_KERNEL(sm80_peer_combine_records_fp32, NK_F32, true)
