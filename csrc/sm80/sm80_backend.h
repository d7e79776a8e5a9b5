/* The sm80 row: portable mma.sync kernels for compute capability 8.0 and newer. The plans and runs of its operators. */
#ifndef NK_SM80_BACKEND_H
#define NK_SM80_BACKEND_H

#include "backend.h"
#include "cuda/cuda_launch.h"
#include "cuda/cuda_quantize.h"

#include <cuda_kernels.h>

extern const nk_family sm80_gemm_family;
extern const nk_family sm80_gemv_family;
extern const nk_family sm80_route_family;

#define SM80_DECLARE_PLAN(op) \
    nk_status sm80_plan_##op(const nk_##op##_problem *problem, const nk_settings *settings, nk_plan *plan, void *choice)
#define SM80_DECLARE(op)   \
    SM80_DECLARE_PLAN(op); \
    nk_status sm80_run_##op(const nk_##op##_problem *problem, const void *choice, const nk_exec *exec)

SM80_DECLARE(gemv);
SM80_DECLARE(gemm);
SM80_DECLARE(dual_gemm);
SM80_DECLARE(grouped_gemm);
SM80_DECLARE(grouped_dual_gemm);
SM80_DECLARE(route);

/* Run by cuda/cuda_route_sort.h, cuda/cuda_combine.h and cuda/cuda_quantize.h. */
SM80_DECLARE_PLAN(sort_by_expert);
SM80_DECLARE_PLAN(combine);
SM80_DECLARE_PLAN(quantize);
SM80_DECLARE_PLAN(dequantize);
SM80_DECLARE_PLAN(relayout);

#endif
