/* The sm100 row: Blackwell's data-center GPUs. Problems that it does not take go on to the sm80 row. */
#ifndef NK_SM100_BACKEND_H
#define NK_SM100_BACKEND_H

#include "backend.h"
#include "cuda/cuda_launch.h"
#include "cuda/cuda_quantize.h"

#include <cuda_kernels.h>

extern const nk_family sm100_gemm_family, sm100_halves_family, sm100_gemv_family, sm100_route_family;

nk_status sm100_plan_gemv(const nk_gemv_problem *p, const nk_settings *settings, nk_plan *plan, void *choice);
nk_status sm100_run_gemv(const nk_gemv_problem *p, const void *choice, const nk_exec *exec);

/* Few tokens go to the gemv where it is faster. */
nk_status sm100_plan_gemm(const nk_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice);
nk_status sm100_run_gemm(const nk_gemm_problem *p, const void *choice, const nk_exec *exec);
nk_status sm100_plan_dual_gemm(const nk_dual_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice);
nk_status sm100_run_dual_gemm(const nk_dual_gemm_problem *p, const void *choice, const nk_exec *exec);
nk_status sm100_plan_grouped_gemm(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                                  void *choice);
nk_status sm100_run_grouped_gemm(const nk_grouped_gemm_problem *p, const void *choice, const nk_exec *exec);
nk_status sm100_plan_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, const nk_settings *settings,
                                       nk_plan *plan, void *choice);
nk_status sm100_run_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, const void *choice, const nk_exec *exec);
nk_status sm100_plan_route(const nk_route_problem *p, const nk_settings *settings, nk_plan *plan, void *choice);
nk_status sm100_run_route(const nk_route_problem *p, const void *choice, const nk_exec *exec);

/* Run by cuda/cuda_route_sort.h, cuda/cuda_combine.h and cuda/cuda_quantize.h. */
nk_status sm100_plan_sort_by_expert(const nk_sort_by_expert_problem *p, const nk_settings *settings, nk_plan *plan,
                                    void *choice);
nk_status sm100_plan_combine(const nk_combine_problem *p, const nk_settings *settings, nk_plan *plan, void *choice);
nk_status sm100_plan_quantize(const nk_quantize_problem *p, const nk_settings *settings, nk_plan *plan, void *choice);
nk_status sm100_plan_dequantize(const nk_dequantize_problem *p, const nk_settings *settings, nk_plan *plan,
                                void *choice);
nk_status sm100_plan_relayout(const nk_relayout_problem *p, const nk_settings *settings, nk_plan *plan, void *choice);

#endif
