/* The GEMM family's tiles, operand kinds and shared memory, for host and device. */
#ifndef NK_SM80_GEMM_CONFIG_H
#define NK_SM80_GEMM_CONFIG_H

#include "nk_format.h"

/* A CTA multiplies WARPS * 32 weight rows by TOKENS tokens, a step at a time; STAGES steps are in shared memory. Small
 * tiles are for few tokens, whose weights come at memory speed, so that bytes in flight count. The large tile decodes a
 * weight once for 128 tokens. Devices with 99 KB of shared memory have room for all tiles up to t32, and for t64 unless
 * tokens are 16-bit and weights NVFP4.
 *
 * X(name, TOKENS, WARPS, STAGES, CTAs per SM that shared memory and registers allow on large devices) */
#define SM80_GEMM_TILES(X) \
    X(t8, 8, 4, 6, 3)      \
    X(t16, 16, 4, 5, 3)    \
    SM80_T32_TILE(X)       \
    X(t64, 64, 4, 4, 2)    \
    X(t128, 128, 8, 3, 1)

/* Those of grouped_dual_gemm and of grouped_gemm with an activation. Each is 170 KB of a wheel, which has machine code
 * for four kinds of GPUs. So there is one, the largest that all devices have room for. Its tiles are not split, since
 * every expert has some. */
#define SM80_T32_TILE(X) X(t32, 32, 4, 4, 3)

enum {
#define SM80_GEMM_INDEX(name, tokens, warps, stages, ctas) SM80_GEMM_##name,
    SM80_GEMM_TILES(SM80_GEMM_INDEX)
#undef SM80_GEMM_INDEX
        SM80_GEMM_TILE_COUNT
};

/* What a kernel multiplies: tokens x weights. */
enum {
    SM80_GEMM_NVFP4,      /* NVFP4 x NVFP4 */
    SM80_GEMM_FP16,       /* fp16 x NVFP4 */
    SM80_GEMM_BF16,       /* bf16 x NVFP4 */
    SM80_GEMM_PLAIN_FP16, /* fp16 x fp16 */
    SM80_GEMM_PLAIN_BF16, /* bf16 x bf16 */
    SM80_GEMM_KIND_COUNT,
    SM80_GEMM_FP4_KINDS = SM80_GEMM_PLAIN_FP16 /* those before have NVFP4 weights */
};

/* A lane takes a chunk of each of its weight rows in a step: 32 codes, or 8 16-bit elements. */
#define SM80_GEMM_PLAIN(kind) ((kind) >= SM80_GEMM_PLAIN_FP16)
#define SM80_GEMM_CHUNK(kind) (SM80_GEMM_PLAIN(kind) ? 8 : 32) /* elements */
#define SM80_GEMM_STEP(kind) (4 * SM80_GEMM_CHUNK(kind))       /* elements along K */
#define SM80_GEMM_WORDS(kind) (SM80_GEMM_CHUNK(kind) / 8)      /* eight elements: two k16 steps of mma */

/* Chunks of a token that a lane takes in a step. */
#define SM80_GEMM_TOKEN_CHUNKS(kind) ((kind) == SM80_GEMM_FP16 || (kind) == SM80_GEMM_BF16 ? 4 : 1)

/* Sizes of shared memory for the host, which cannot see the templates that lie there. A static_assert in every kernel
 * compares the two (sm80_gemm.cuh). OPERANDS is struct operand_memory of sm80_mainloop.cuh. */
#define SM80_GEMM_OPERANDS(tokens, warps, stages, kind)                                       \
    (512 * ((stages) * (warps) * 5 + (stages) * (tokens) / 8 * SM80_GEMM_TOKEN_CHUNKS(kind) + \
            2 * (tokens) / 8 * SM80_GEMM_WORDS(kind)) +                                       \
     128 * (stages) * (tokens) / 8)

/* staged_tile of cuda/epilogue.cuh, which overwrites the operands. */
#define SM80_OUT_PITCH(rows) ((rows) + 4)
#define SM80_OUT_BYTES(tokens, rows) (4 * (tokens) * SM80_OUT_PITCH(rows))

#define SM80_MAX(a, b) ((a) > (b) ? (a) : (b))
#define SM80_GEMM_SMEM(tokens, warps, stages, kind) \
    SM80_MAX(SM80_GEMM_OPERANDS(tokens, warps, stages, kind), SM80_OUT_BYTES(tokens, 32 * (warps)))

/* What lies before it, at most: current_tile of sm80_gemm.cuh, and what aligns the rest. */
#define SM80_GEMM_STATIC_BYTES 128

#endif
