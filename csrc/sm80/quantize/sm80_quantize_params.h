/* What the quantize kernels get beside the problem, for host and device. */
#ifndef NK_SM80_QUANTIZE_PARAMS_H
#define NK_SM80_QUANTIZE_PARAMS_H

#include "sm80_quantize_tiles.h"

#define SM80_AMAX_THREADS 256
#define SM80_AMAX_VECTORS 4 /* of 16 bytes: a thread of the amax pass has so many in flight */
#define SM80_EXPERT_THREADS 1024

/* x and `up` as rows of bytes, as few as their strides allow. A CTA reads a piece of a row at once. */
typedef struct sm80_amax_rows {
    int64_t l, rows, bytes, all_rows;
    int64_t row_stride, batch_stride;
    int64_t up_row_stride, up_batch_stride;
    sm80_divisor pieces; /* of a row */
    int64_t piece_bytes;
    int64_t step_rows, step_pieces; /* from a piece of a CTA to its next */
    int32_t vectors;                /* of a piece, that a thread reads */
} sm80_amax_rows;

NK_HD int64_t sm80_amax_piece(int32_t vectors) { return (int64_t)SM80_AMAX_THREADS * 16 * vectors; }

/* The rows of x whose scale factors an atom row holds. */
typedef struct sm80_atom_rows {
    int32_t first, count;
} sm80_atom_rows;

/* Workspace: the experts' atom rows, then the partial maxima. */
typedef struct sm80_quantize_params {
    sm80_tiles tiles;
    int32_t tile_rows;
    int64_t cols, scale_cols, col_atoms; /* blocks of x in a row, scale factors with padding, atoms */
    int64_t positions;       /* rows that tiles cover: x's, padding included if blocked; experts: sm80_quantize.cu */
    sm80_atom_rows *experts; /* `atoms` of them, or NULL; then the rows before and after all experts */
    int64_t atoms;
    sm80_amax_rows amax_rows;
    uint32_t *maxima; /* bits of the partial maxima */
    int32_t maxima_count;
} sm80_quantize_params;

#endif
