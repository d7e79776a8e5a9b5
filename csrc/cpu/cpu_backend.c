#include "cpu_backend.h"

#include "backend.h"
#include "nk_format.h"
#include "cpu_float_mode.h"
#include "cpu_pool.h"

#include <string.h>

static bool serves(nk_device device) { return device.type == NK_CPU; }
static const char *why_not(void) { return NULL; }

/* ---------------------------------------------------------------------------------------------------------------- */
/* Plans                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

/* What a call computes with, as the environment and the calling thread's affinity have it now. */
static nk_status choose(cpu_means *means)
{
    means->batch_invariant = nk_settings_of_call()->batch_invariant;
    NK_TRY(cpu_path_pick(&means->path));
    return cpu_thread_count(&means->threads);
}

static nk_status plan_jobs(nk_plan *plan, const char *kernel, int64_t jobs, cpu_means *means)
{
    NK_TRY(choose(means));
    plan->kernel = kernel;
    plan->why = means->path->why;
    plan->grid = jobs;
    plan->threads = means->threads;
    plan->batch_invariant = true;
    return NK_OK;
}

static nk_status plan_rows(nk_plan *plan, const char *kernel, int64_t rows)
{
    cpu_means means;
    return plan_jobs(plan, kernel, rows, &means);
}

static int64_t tiles(int64_t m, int64_t n) { return nk_ceil_div(m, CPU_TILE_M) * nk_ceil_div(n, CPU_TILE_N); }

/* A sum's order depends on K alone, but for rows that are multiplied by themselves. */
static nk_status plan_tiles(nk_plan *plan, const char *kernel, int64_t count)
{
    cpu_means means;
    NK_TRY(plan_jobs(plan, kernel, count, &means));
    plan->tile_m = CPU_TILE_M;
    plan->tile_n = CPU_TILE_N;
    plan->batch_invariant = means.batch_invariant || !means.path->multiply_vector;
    return NK_OK;
}

static nk_status plan_gemm(const nk_gemm_problem *p, nk_plan *plan)
{
    return plan_tiles(plan, "cpu_gemm", p->l * tiles(p->m, p->n));
}

static nk_status plan_dual_gemm(const nk_dual_gemm_problem *p, nk_plan *plan)
{
    return plan_tiles(plan, "cpu_dual_gemm", p->l * tiles(p->m, p->n));
}

static nk_status plan_grouped_gemm(const nk_grouped_gemm_problem *p, nk_plan *plan)
{
    int64_t count = p->list ? 0 : tiles(p->all.m, p->all.n); /* at least: experts end tiles early */
    for (int64_t g = 0; p->list && g < p->groups; g++)
        count += tiles(p->list[g].m, p->list[g].n);
    return plan_tiles(plan, "cpu_grouped_gemm", count);
}

/* No row of 16-bit weights is multiplied by itself. */
static nk_status plan_route(const nk_route_problem *p, nk_plan *plan)
{
    NK_TRY(plan_tiles(plan, "cpu_route", tiles(p->m, p->n)));
    plan->batch_invariant = true;
    return NK_OK;
}

static nk_status plan_quantize(const nk_quantize_problem *p, nk_plan *plan)
{
    return plan_rows(plan, "cpu_quantize", p->l * p->rows);
}

static nk_status plan_dequantize(const nk_dequantize_problem *p, nk_plan *plan)
{
    return plan_rows(plan, "cpu_dequantize", p->l * p->rows);
}

static nk_status plan_relayout(const nk_relayout_problem *p, nk_plan *plan)
{
    return plan_rows(plan, "cpu_relayout", p->l * p->rows);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Runs                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* What the plan says is not asked for again: affinity is a system call. */
static nk_status planned(const nk_plan *plan, cpu_means *means)
{
    means->threads = plan->threads;
    means->batch_invariant = plan->batch_invariant;
    return cpu_path_pick(&means->path);
}

#define RUN(op)                                                                      \
    static nk_status run_##op(const nk_##op##_problem *problem, const nk_exec *exec) \
    {                                                                                \
        cpu_means means;                                                             \
        NK_TRY(planned(&exec->plan, &means));                                        \
        cpu_float_mode callers = cpu_enter_default_mode();                           \
        cpu_##op(problem, means);                                                    \
        cpu_leave_default_mode(callers);                                             \
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
