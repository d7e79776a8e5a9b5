/* The cells whose plan and run all rows share: a row gives the kernels, which it makes of the headers in cuda/. */
#ifndef NK_CUDA_SHARED_CELLS_H
#define NK_CUDA_SHARED_CELLS_H

#include "cuda_combine.h"
#include "cuda_quantize.h"
#include "cuda_route_sort.h"

#define CUDA_SHARED_PLAN(row, op, ...)                                                                       \
    static nk_status row##_plan_##op(const nk_##op##_problem *p, const nk_settings *settings, nk_plan *plan, \
                                     void *choice)                                                           \
    {                                                                                                        \
        static const cuda_##op##_kernels kernels = __VA_ARGS__;                                              \
        return cuda_plan_##op(p, &kernels, settings, plan, choice);                                          \
    }

/* sorts: the kernel of sort_by_expert. combine_bytes: of a load of combine. */
#define CUDA_SHARED_PLANS(row, sorts, combine_bytes)                \
    CUDA_SHARED_PLAN(row, quantize, CUDA_QUANTIZE_KERNELS(row))     \
    CUDA_SHARED_PLAN(row, dequantize, CUDA_DEQUANTIZE_KERNELS(row)) \
    CUDA_SHARED_PLAN(row, relayout, CUDA_RELAYOUT_KERNELS(row))     \
    CUDA_SHARED_PLAN(row, sort_by_expert, {&sorts})                 \
    CUDA_SHARED_PLAN(row, combine, CUDA_COMBINE_KERNELS(row, combine_bytes))

#define CUDA_SHARED_CELL(row, op) .op = {row##_plan_##op, cuda_run_##op}
#define CUDA_SHARED_CELLS(row)                                                                           \
    CUDA_SHARED_CELL(row, quantize), CUDA_SHARED_CELL(row, dequantize), CUDA_SHARED_CELL(row, relayout), \
        CUDA_SHARED_CELL(row, sort_by_expert), CUDA_SHARED_CELL(row, combine)

#endif
