/* Sizes of the gemv kernel, for host and device. */
#ifndef NK_SM80_GEMV_CONFIG_H
#define NK_SM80_GEMV_CONFIG_H

#include "nk_format.h"

#define SM80_GEMV_WARPS 8
#define SM80_GEMV_CTAS_PER_SM 2

/* X(name, split_k: warps that divide K of a row quad among them). Many are for few, long rows. */
#define SM80_GEMV_TILES(X) \
    X(w1, 1)               \
    X(w2, 2)               \
    X(w4, 4)               \
    X(w8, 8)

#define SM80_GEMV_ROWS 4   /* of a row quad: 16 bytes of a blocked SF atom hold the scale factors of all four */
#define SM80_GEMV_CHUNK 32 /* elements: 16 bytes of codes, two scale factors */

/* Shared memory: at most `chunks` chunks of the vector, decoded; then two sets of the warps' partial sums. The vector
 * is two arrays: words [4][chunks] and, if it is NVFP4, scale factors [chunks]. */
typedef struct sm80_gemv_vector_chunk {
    uint8_t words[4][16]; /* eight elements each, in 16 bits */
    float sf[2];
} sm80_gemv_vector_chunk;

typedef struct sm80_gemv_partials {
    float sums[2][SM80_GEMV_WARPS][SM80_GEMV_ROWS];
} sm80_gemv_partials;

#define SM80_GEMV_CHUNK_BYTES ((int32_t)sizeof(sm80_gemv_vector_chunk))
#define SM80_GEMV_PARTIAL_BYTES ((int32_t)sizeof(sm80_gemv_partials))

NK_HD int32_t sm80_gemv_smem(int64_t chunks)
{
    return (int32_t)(chunks * SM80_GEMV_CHUNK_BYTES + SM80_GEMV_PARTIAL_BYTES);
}

/* How many row quads there are: 32 in a full atom, fewer in the last. */
NK_HD int64_t sm80_gemv_row_quads(int64_t rows)
{
    int64_t rest = rows % NK_SF_ATOM_ROWS;
    return rows / NK_SF_ATOM_ROWS * 32 + (rest < 32 ? rest : 32);
}

#endif
