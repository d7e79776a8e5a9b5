/* The CPU row of the backend table: plans and runs. */
#include "cpu_backend.h"

#include "backend.h"
#include "cpu_float_mode.h"
#include "cpu_pool.h"
#include "nk_format.h"

static bool serves(const nk_backend *row, nk_device device) { return (void)row, device.type == NK_CPU; }

static const char *cpu_why_not(const nk_backend *row) { return (void)row, NULL; }

/* ---------------------------------------------------------------------------------------------------------------- */
/* Plans                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

NK_CHOICE_FITS(cpu_means);

/* Fills the plan of a loop of `jobs` jobs, which are tiles or rows, on `worthwhile` threads or fewer. */
static nk_status plan_loop(const nk_settings *settings, const char *kernel, int64_t jobs, int worthwhile, nk_plan *plan,
                           cpu_means *means)
{
    NK_TRY(cpu_path_pick(settings->cpu, &means->path));
    NK_TRY(cpu_thread_count(settings, worthwhile, &means->threads));
    means->batch_invariant = settings->batch_invariant;
    plan->kernel = kernel;
    plan->why = means->path->why;
    plan->grid = jobs;
    plan->threads = means->threads;
    plan->batch_invariant = true;
    return NK_OK;
}

static double multiply_adds_of(const nk_gemm_problem *p)
{
    return (double)p->l * (double)p->m * (double)p->n * (double)p->k;
}

static int64_t count_tiles(int64_t m, int64_t n) { return nk_ceil_div(m, CPU_TILE_M) * nk_ceil_div(n, CPU_TILE_N); }

static nk_status plan_row_loop(const nk_settings *settings, const char *kernel, int64_t rows, nk_plan *plan,
                               cpu_means *means)
{
    return plan_loop(settings, kernel, rows, CPU_MAX_THREADS, plan, means);
}

/* The order of a sum depends on K alone, unless gemv sums it. */
static nk_status plan_tile_loop(const nk_settings *settings, const char *kernel, int64_t count, double multiply_adds,
                                nk_plan *plan, cpu_means *means)
{
    NK_TRY(plan_loop(settings, kernel, count, cpu_worthwhile_threads(multiply_adds), plan, means));
    plan->tile_m = CPU_TILE_M;
    plan->tile_n = CPU_TILE_N;
    plan->batch_invariant = means->batch_invariant || !means->path->gemv;
    return NK_OK;
}

static nk_status plan_gemm(const nk_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    return plan_tile_loop(settings, "cpu_gemm", p->l * count_tiles(p->m, p->n), multiply_adds_of(p), plan, choice);
}

static nk_status plan_dual_gemm(const nk_dual_gemm_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    const double gates_and_ups = 2 * (double)p->l * (double)p->m * (double)p->n * (double)p->k;
    return plan_tile_loop(settings, "cpu_dual_gemm", p->l * count_tiles(p->m, p->n), gates_and_ups, plan, choice);
}

static nk_status plan_grouped_gemm(const nk_grouped_gemm_problem *p, const nk_settings *settings, nk_plan *plan,
                                   void *choice)
{
    int64_t count = p->list ? 0 : count_tiles(p->all.m, p->all.n); /* or more: experts end tiles early */
    double all = p->list ? 0 : multiply_adds_of(&p->all);          /* or fewer: some rows are no expert's */
    for (int64_t g = 0; p->list && g < p->groups; g++) {
        count += count_tiles(p->list[g].m, p->list[g].n);
        all += multiply_adds_of(&p->list[g]);
    }
    return plan_tile_loop(settings, "cpu_grouped_gemm", count, all, plan, choice);
}

static nk_status plan_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, const nk_settings *settings,
                                        nk_plan *plan, void *choice)
{
    const nk_gemm_problem *gates = &p->gates.all;
    return plan_tile_loop(settings, "cpu_grouped_dual_gemm", count_tiles(gates->m, gates->n),
                          2 * multiply_adds_of(gates), plan, choice);
}

/* 16-bit weights never take gemv. */
static nk_status plan_route(const nk_route_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    NK_TRY(plan_tile_loop(settings, "cpu_route", count_tiles(p->m, p->n), cpu_route_multiply_adds(p), plan, choice));
    plan->batch_invariant = true;
    return NK_OK;
}

static nk_status plan_sort_by_expert(const nk_sort_by_expert_problem *p, const nk_settings *settings, nk_plan *plan,
                                     void *choice)
{
    return plan_row_loop(settings, "cpu_sort_by_expert", p->m, plan, choice);
}

static nk_status plan_combine(const nk_combine_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    return plan_row_loop(settings, "cpu_combine", p->m, plan, choice);
}

static nk_status plan_quantize(const nk_quantize_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    return plan_row_loop(settings, "cpu_quantize", p->l * p->rows, plan, choice);
}

static nk_status plan_dequantize(const nk_dequantize_problem *p, const nk_settings *settings, nk_plan *plan,
                                 void *choice)
{
    return plan_row_loop(settings, "cpu_dequantize", p->l * p->rows, plan, choice);
}

static nk_status plan_relayout(const nk_relayout_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    return plan_row_loop(settings, "cpu_relayout", p->l * p->rows, plan, choice);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Runs                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A run's floating-point mode is not that of signal handlers: they get the caller's, and may change it. */
typedef struct run_mode {
    const nk_exec *exec; /* the caller's */
    cpu_float_mode callers;
} run_mode;

static bool interrupted(void *context)
{
    run_mode *mode = context;
    cpu_leave_default_mode(mode->callers);
    bool stop = mode->exec->interrupted(mode->exec->context);
    mode->callers = cpu_enter_default_mode();
    return stop;
}

#define RUN(op)                                                                                          \
    static nk_status run_##op(const nk_##op##_problem *problem, const void *choice, const nk_exec *exec) \
    {                                                                                                    \
        const cpu_means *means = choice;                                                                 \
        run_mode mode = {exec, cpu_enter_default_mode()};                                                \
        nk_exec own = *exec;                                                                             \
        own.context = &mode;                                                                             \
        if (exec->interrupted) own.interrupted = interrupted;                                            \
        nk_status status = cpu_##op(problem, *means, &own);                                              \
        cpu_leave_default_mode(mode.callers);                                                            \
        return status;                                                                                   \
    }

RUN(gemm)
RUN(dual_gemm)
RUN(grouped_gemm)
RUN(grouped_dual_gemm)
RUN(route)
RUN(sort_by_expert)
RUN(combine)
RUN(quantize)
RUN(dequantize)
RUN(relayout)

const nk_backend nk_backend_cpu = {
    .name = "cpu",
    .serves = serves,
    .why_not = cpu_why_not,
    .gemv = {plan_gemm, run_gemm},
    .gemm = {plan_gemm, run_gemm},
    .dual_gemm = {plan_dual_gemm, run_dual_gemm},
    .grouped_gemm = {plan_grouped_gemm, run_grouped_gemm},
    .grouped_dual_gemm = {plan_grouped_dual_gemm, run_grouped_dual_gemm},
    .route = {plan_route, run_route},
    .sort_by_expert = {plan_sort_by_expert, run_sort_by_expert},
    .combine = {plan_combine, run_combine},
    .quantize = {plan_quantize, run_quantize},
    .dequantize = {plan_dequantize, run_dequantize},
    .relayout = {plan_relayout, run_relayout},
};
