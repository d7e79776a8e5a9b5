#include "cpu_backend.h"

#include "../backend.h"
#include "../nk_format.h"
#include "cpu_tile.h"

#ifdef __SSE2__
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

static bool serves(nk_device device) { return device.type == NK_CPU; }
static const char *why_not(void) { return NULL; }

/* ---------------------------------------------------------------------------------------------------------------- */
/* Plans                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

static void plan_tiles(nk_plan *plan, const char *kernel, int64_t l, int64_t m, int64_t n)
{
    plan->kernel = kernel;
    plan->why = "CPU tensors; portable C, the specification";
    plan->tile_m = CPU_TILE_M;
    plan->tile_n = CPU_TILE_N;
    plan->tile_k = CPU_TILE_K;
    plan->grid = l * nk_ceil_div(m, CPU_TILE_M) * nk_ceil_div(n, CPU_TILE_N);
    plan->threads = 1;
    plan->batch_invariant = true; /* a sum's order depends on K alone */
}

static void plan_rows(nk_plan *plan, const char *kernel, int64_t rows)
{
    plan->kernel = kernel;
    plan->why = "CPU tensors; portable C, the specification";
    plan->grid = rows;
    plan->threads = 1;
    plan->batch_invariant = true;
}

static nk_status plan_gemm(const nk_gemm_problem *p, nk_plan *plan)
{
    plan_tiles(plan, "cpu_gemm", p->l, p->m, p->n);
    return NK_OK;
}

static nk_status plan_dual_gemm(const nk_dual_gemm_problem *p, nk_plan *plan)
{
    plan_tiles(plan, "cpu_dual_gemm", p->l, p->m, p->n);
    return NK_OK;
}

static nk_status plan_grouped_gemm(const nk_grouped_gemm_problem *p, nk_plan *plan)
{
    if (!p->list) {
        plan_tiles(plan, "cpu_grouped_gemm", 1, p->all.m, p->all.n); /* at least: experts end tiles early */
        return NK_OK;
    }
    int64_t tiles = 0;
    for (int64_t g = 0; g < p->groups; g++) {
        plan_tiles(plan, "cpu_grouped_gemm", 1, p->list[g].m, p->list[g].n);
        tiles += plan->grid;
    }
    plan_tiles(plan, "cpu_grouped_gemm", 0, 0, 0);
    plan->grid = tiles;
    return NK_OK;
}

static nk_status plan_route(const nk_route_problem *p, nk_plan *plan)
{
    plan_tiles(plan, "cpu_route", 1, p->m, p->n);
    return NK_OK;
}

static nk_status plan_quantize(const nk_quantize_problem *p, nk_plan *plan)
{
    plan_rows(plan, "cpu_quantize", p->l * p->rows);
    return NK_OK;
}

static nk_status plan_dequantize(const nk_dequantize_problem *p, nk_plan *plan)
{
    plan_rows(plan, "cpu_dequantize", p->l * p->rows);
    return NK_OK;
}

static nk_status plan_relayout(const nk_relayout_problem *p, nk_plan *plan)
{
    plan_rows(plan, "cpu_relayout", p->l * p->rows);
    return NK_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Runs: with denormals and round-to-nearest, whatever mode the caller's thread is in                               */
/* ---------------------------------------------------------------------------------------------------------------- */

#ifdef __SSE2__ /* a tenth of what <fenv.h> takes, which saves the x87 unit too */
typedef unsigned float_mode;
static float_mode enter_default_mode(void)
{
    float_mode callers = _mm_getcsr();
    _mm_setcsr(0x1F80);
    return callers;
}
static void leave_default_mode(float_mode callers) { _mm_setcsr(callers); }
#else
typedef fenv_t float_mode;
static float_mode enter_default_mode(void)
{
    float_mode callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    return callers;
}
static void leave_default_mode(float_mode callers) { fesetenv(&callers); }
#endif

#define RUN(op)                                                                      \
    static nk_status run_##op(const nk_##op##_problem *problem, const nk_exec *exec) \
    {                                                                                \
        (void)exec;                                                                  \
        float_mode callers = enter_default_mode();                                   \
        cpu_##op(problem);                                                           \
        leave_default_mode(callers);                                                 \
        return NK_OK;                                                                \
    }

RUN(gemm)
RUN(dual_gemm)
RUN(grouped_gemm)
RUN(route)
RUN(quantize)
RUN(dequantize)
RUN(relayout)

const nk_backend nk_backend_cpu = {
    .name = "cpu",
    .devices = "any CPU tensor",
    .device_type = NK_CPU,
    .serves = serves,
    .why_not = why_not,
    .gemv = {plan_gemm, run_gemm},
    .gemm = {plan_gemm, run_gemm},
    .dual_gemm = {plan_dual_gemm, run_dual_gemm},
    .grouped_gemm = {plan_grouped_gemm, run_grouped_gemm},
    .route = {plan_route, run_route},
    .quantize = {plan_quantize, run_quantize},
    .dequantize = {plan_dequantize, run_dequantize},
    .relayout = {plan_relayout, run_relayout},
};
