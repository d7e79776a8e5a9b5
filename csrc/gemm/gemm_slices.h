/* Slices of a call whose workspace would be too large: they are multiplied one after the other. */
#ifndef NK_GEMM_SLICES_H
#define NK_GEMM_SLICES_H

#include "gemm_family.h"

/* Of rows, or of batches. */
typedef struct gemm_slices {
    int64_t rows, batches; /* of a slice */
} gemm_slices;

gemm_slices gemm_slices_of(const gemm_family *family, const gemm_desc *d);

/* Whether tensor maps can begin at every slice: those of the first are checked, the rest begin at other batches. */
bool gemm_slices_are_aligned(const gemm_slices *slices, const gemm_desc *d);

/* The slice that begins at this batch and this row. */
void gemm_slice(const gemm_desc *d, const gemm_slices *slices, int64_t batch, int64_t row, gemm_call *slice);

#endif
