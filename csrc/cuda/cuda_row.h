/* The fields that all CUDA backends have in common: a row serves the GPUs of a range of compute capabilities. */
#ifndef NK_CUDA_ROW_H
#define NK_CUDA_ROW_H

#include "backend.h"
#include "cuda_driver.h"
#include "cuda_gpu.h"

bool cuda_row_serves(const nk_backend *row, nk_device device);
const char *cuda_row_why_not(const nk_backend *row);
nk_status cuda_row_warmup(const nk_backend *row, nk_device device);

#define CUDA_ANY_NEWER INT32_MAX /* as `newest` */

/* Beside it a table has its name, `oldest` and `newest`, and its cells. */
#define CUDA_ROW                                                                                                       \
    .serves = cuda_row_serves, .why_not = cuda_row_why_not, .warmup = cuda_row_warmup, .device_count = cuda_gpu_count, \
    .needs = cuda_driver_needs

#endif
