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

/* Declares the cells that every row has of its own, and lists them in its table. */
#define CUDA_DECLARE_CELLS(row)              \
    NK_DECLARE_CELL(row, gemv);              \
    NK_DECLARE_CELL(row, gemm);              \
    NK_DECLARE_CELL(row, dual_gemm);         \
    NK_DECLARE_CELL(row, grouped_gemm);      \
    NK_DECLARE_CELL(row, grouped_dual_gemm); \
    NK_DECLARE_CELL(row, route)

#define CUDA_CELL(row, op) .op = {row##_plan_##op, row##_run_##op}
#define CUDA_CELLS(row)                                                                                  \
    CUDA_CELL(row, gemv), CUDA_CELL(row, gemm), CUDA_CELL(row, dual_gemm), CUDA_CELL(row, grouped_gemm), \
        CUDA_CELL(row, grouped_dual_gemm), CUDA_CELL(row, route)

/* Beside it a table has its name, `oldest` and `newest`, and its cells. */
#define CUDA_ROW                                                                                                       \
    .serves = cuda_row_serves, .why_not = cuda_row_why_not, .warmup = cuda_row_warmup, .device_count = cuda_gpu_count, \
    .needs = cuda_driver_needs

#endif
