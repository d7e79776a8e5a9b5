/* The sm90 row: Hopper. Problems that it does not take go on to the sm80 row. */
#ifndef NK_SM90_BACKEND_H
#define NK_SM90_BACKEND_H

#include "backend.h"
#include "cuda/cuda_launch.h"

#include <cuda_kernels.h>

extern const nk_family sm90_gemv_family, sm90_gemm_family, sm90_halves_family, sm90_route_family;

nk_status sm90_plan_gemv(const nk_gemv_problem *p, const nk_settings *settings, nk_plan *plan, void *choice);
nk_status sm90_run_gemv(const nk_gemv_problem *p, const void *choice, const nk_exec *exec);

/* Few tokens go to the gemv where it is faster. */
nk_status sm90_plan_gemm(const nk_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice);
nk_status sm90_run_gemm(const nk_gemm_problem *p, const void *choice, const nk_exec *exec);
nk_status sm90_plan_dual_gemm(const nk_dual_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice);
nk_status sm90_run_dual_gemm(const nk_dual_gemm_problem *p, const void *choice, const nk_exec *exec);
nk_status sm90_plan_grouped_gemm(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                                 void *choice);
nk_status sm90_run_grouped_gemm(const nk_grouped_gemm_problem *p, const void *choice, const nk_exec *exec);
nk_status sm90_plan_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                                      void *choice);
nk_status sm90_run_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, const void *choice, const nk_exec *exec);

nk_status sm90_plan_route(const nk_route_problem *p, const nk_settings *settings, nk_plan *plan, void *choice);
nk_status sm90_run_route(const nk_route_problem *p, const void *choice, const nk_exec *exec);

#endif
