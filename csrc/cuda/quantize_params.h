/* What the quantize kernels get beside the problem, for host and device. */
#ifndef NK_QUANTIZE_PARAMS_H
#define NK_QUANTIZE_PARAMS_H

#include "quantize_tiles.h"

#define CUDA_AMAX_THREADS 256
#define CUDA_AMAX_VECTORS 4 /* of 16 bytes: a thread of the amax pass has so many in flight */
#define CUDA_EXPERT_THREADS 1024

/* x and `up` as rows of bytes, as few as their strides allow. A CTA reads a piece of a row at a time. */
typedef struct cuda_amax_rows {
    int64_t l, rows, bytes, all_rows;
    int64_t row_stride, batch_stride;
    int64_t up_row_stride, up_batch_stride;
    cuda_divisor pieces; /* of a row */
    int64_t piece_bytes;
    int64_t step_rows, step_pieces; /* from a piece of a CTA to its next */
    int32_t vectors;                /* of a piece, that a thread reads */
} cuda_amax_rows;

NK_HD int64_t cuda_amax_piece(int32_t vectors) { return (int64_t)CUDA_AMAX_THREADS * 16 * vectors; }

/* The rows of x whose scale factors an atom row holds. */
typedef struct cuda_atom_rows {
    int32_t first, count;
} cuda_atom_rows;

/* Workspace: the experts' atom rows, then the partial maxima. */
typedef struct cuda_quantize_params {
    cuda_tiles tiles;
    int32_t tile_rows;
    int64_t cols, scale_cols, col_atoms; /* blocks of x in a row, scale factors with padding, atoms */
    int64_t positions;       /* rows that tiles cover: x's, padding included if blocked; experts: quantize.cuh */
    cuda_atom_rows *experts; /* `atoms` of them, or NULL; then the rows before and after all experts */
    int64_t atoms;
    cuda_amax_rows amax_rows;
    uint32_t *maxima; /* bits of the partial maxima */
    int32_t maxima_count;
} cuda_quantize_params;

#endif
