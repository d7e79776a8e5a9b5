/* The CPU row: one function per operator, on checked problems, on the calling thread. */
#ifndef NK_CPU_BACKEND_H
#define NK_CPU_BACKEND_H

#include "../nk_problem.h"

void cpu_gemm(const nk_gemm_problem *problem); /* gemv is its m = 1 */
void cpu_dual_gemm(const nk_dual_gemm_problem *problem);
void cpu_grouped_gemm(const nk_grouped_gemm_problem *problem);
void cpu_route(const nk_route_problem *problem);
void cpu_quantize(const nk_quantize_problem *problem);
void cpu_dequantize(const nk_dequantize_problem *problem);
void cpu_relayout(const nk_relayout_problem *problem);

static inline int64_t cpu_min(int64_t x, int64_t y) { return x < y ? x : y; }

#endif
