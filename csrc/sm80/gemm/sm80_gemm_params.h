/* What a GEMM launch needs beyond its problem. */
#ifndef NK_SM80_GEMM_PARAMS_H
#define NK_SM80_GEMM_PARAMS_H

#include <stdint.h>

/* All tiles' steps of K, laid end to end, are dealt out evenly: CTA c takes `share` of them from c * share on. It
 * stores the tiles that it has as a whole. Of the others it has at most two parts, which go to the workspace: one that
 * begins its tile as part 2 c + 1, one that does not as part 2 c. */
typedef struct sm80_gemm_params {
    uint32_t m_tiles, n_tiles, tiles; /* tiles: of all batches */
    uint32_t steps;                   /* of K in a tile */
    uint32_t units;                   /* what a tile counts: its steps, or 1 where tiles are not shared */
    uint32_t share;                   /* in units */
    float *partials;                  /* fp32 sums [part][quad][thread][4] */
} sm80_gemm_params;

#endif
