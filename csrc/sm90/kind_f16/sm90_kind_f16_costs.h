/* What the sm90 kind_f16 family takes, in microseconds (us).
 *
 * From 36 launches of 6 problems on an NVIDIA H200, 2026-11: the choice takes 1.2 % more than the best on average,
 * 5.5 % at most. */
#ifndef NK_SM90_KIND_F16_COSTS_H
#define NK_SM90_KIND_F16_COSTS_H

#define SM90_KIND_F16_LAUNCH_US 3.28       /* the launch, and the list of experts */
#define SM90_KIND_F16_TILE_US 0.388        /* a tile: its beginning and epilogue */
#define SM90_KIND_F16_TILE_TOKEN_US 0.0016 /* and for each token of it */
#define SM90_KIND_F16_STAGE_US 0.015       /* advancing to the next stage */
#define SM90_KIND_F16_TENSOR_US 2.49e-5    /* 64 elements of K of a weight row and a token: tensor cores */
#define SM90_KIND_F16_BYTES_PER_US 8.63e4  /* of an SM, from L2 */
#define SM90_KIND_F16_MEMORY_PER_US 4.01e6 /* bytes of the GPU, from memory */

#endif
