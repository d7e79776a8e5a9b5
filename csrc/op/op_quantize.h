/* Checks of codes and scale factors that a call writes. */
#ifndef NK_OP_QUANTIZE_H
#define NK_OP_QUANTIZE_H

#include "op_check.h"

/* `codes` are as `spec` says, contiguous along K. In a dry run they may be NULL. *view and *data become theirs. */
nk_status nk_check_codes_out(const nk_tensor *codes, const nk_tensor *spec, const nk_exec *exec, const nk_tensor *first,
                             nk_view *view, uint8_t **data);

/* `scales` are those of `rows` with k elements each. In a dry run they may be NULL: `spec` takes their place. */
nk_status nk_check_scales_out(const nk_tensor *scales, const nk_tensor *spec, nk_sf_layout layout, const nk_view *rows,
                              int64_t k, const nk_exec *exec, const nk_tensor *first, uint8_t **data,
                              int64_t *row_stride, int64_t *batch_stride);

#endif
